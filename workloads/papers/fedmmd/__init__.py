"""FedMMD, one of two methods of a paper (Yao, Huang, Wu, Zhang and Sun, 2019)."""
