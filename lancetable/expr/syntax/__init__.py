"""Expression trees and the languages they are parsed from."""
