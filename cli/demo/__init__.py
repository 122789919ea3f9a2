"""`semel demo`: the main job on real input, with crashes: each flight is reflected exactly once."""
