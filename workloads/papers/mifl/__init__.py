"""MIFL (Uddin, Xiang, Lu, Yearwood and Gao, IEEE TPDS, 2021)."""
