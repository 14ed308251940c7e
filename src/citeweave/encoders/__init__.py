"""Encoders: what turns a text into a vector; loaded from folders, never trained here."""
