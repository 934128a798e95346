"""The pinned engine and the patches on it: exact Git work on trees and texts. Knows no settings, no build and no server."""
