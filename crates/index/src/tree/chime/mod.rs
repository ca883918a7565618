pub mod leaf;
