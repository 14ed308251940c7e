"""Vector databases beside an index: the same vectors in LanceDB or Milvus, found by the same questions."""
