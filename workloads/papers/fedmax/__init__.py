"""FedMAX (Chen, Bhardwaj and Marculescu, ECML PKDD 2020)."""
