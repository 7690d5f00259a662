"""The proof that a hit gives what a cold run gives, with evidence of where the tokens came from."""
