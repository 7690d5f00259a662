"""From hardware, model and cache tier to commands that engines take, and to how many tokens fit; and lines checked."""
