"""Networks: torsos, heads, normalisers. Modules only, no training logic."""
