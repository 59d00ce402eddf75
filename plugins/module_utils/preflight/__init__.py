"""Preflight: what each node says of itself (facts, network; on the nodes) and what of it is wrong (checks)."""
