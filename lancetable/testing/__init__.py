"""Helpers for tests of lancetable and of stores and handlers written elsewhere. Nothing else imports this package."""
