//! SepHash: the model-based suite, what it costs, what the adversary finds, which faults are convicted, and the ends of its widths.

mod adversary;
mod budgets;
mod limits;
