//! SepHash: what it costs, what the adversary finds, slots that crashed clients leave, and the limits of its fields.

mod adversary;
mod budgets;
mod landing;
mod limits;
