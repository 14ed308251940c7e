"""Search indexes: built, updated, and queried by text, paper or sentences, or for what to cite."""
