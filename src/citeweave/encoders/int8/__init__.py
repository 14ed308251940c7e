"""BERT in int8 on processors with the dot-product instruction of ARM."""
