"""Questions to an index: what they may say, how they are answered, and why a paper is among the answers."""
