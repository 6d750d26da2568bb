"""Expression trees and SQL syntax."""
