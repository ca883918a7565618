//! Sherman, and the skeleton of the ordered indexes. The suites of all kinds test the rest.

mod adversary;
mod budgets;
mod damage;
mod hand_over;
mod keys;
mod shape;
mod unlinked;
