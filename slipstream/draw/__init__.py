"""Drawing for files: a canvas for pictures, charts as SVG and PNG, and HTML pages that need no other file."""

# Told apart by people who do not see all colours (Okabe and Ito), and readable on a light ground.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C564B", "#4D4D4D")
