"""Numbers: tensors, exact sums, masks, encodings and seeds; the same bits in any order."""
