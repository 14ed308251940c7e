"""The model that ships: weave on papers of several sources, trained on a GPU, judged, and compressed to a delta."""

NAME = "joint"
SYSTEM = "weave, as shipped"
