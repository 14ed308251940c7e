"""Encoders: models that turn a text into a vector; loaded from folders, saved, never trained here."""
