"""Who cites whom, what "related" can mean, and vectors of the nodes."""
