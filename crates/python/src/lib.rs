//! The native part of the Python package `farindex`, on the face of the library alone.
//!
//! Invariants:
//!
//! - **One session for each thread.** A session of the library belongs to one thread, so each Python thread that uses a pool has a
//!   session of its own (`threads`). Python objects hold no session: they name a pool and an index.
//! - **The GIL is released** while far memory works. No Python code runs and no Python object is touched in between.
//! - **No thread of the library attaches to the interpreter.** Answers of worker threads reach asyncio through a socket that the
//!   event loop watches (`completions`), so the end of the interpreter waits for no thread and stops none.
//! - **After a fork the child cannot touch the pool** (`fork`): neither by an operation nor by closing what it inherited.
//!
//! | Module | What it holds |
//! |---|---|
//! | `pool` | the class `Pool` |
//! | `index` | the class `Index`, in parts: mapping, conditional operations, batches, ordered operations |
//! | `entries` | iterators over entries |
//! | `handle`, `completions` | asyncio: operations on worker threads, and how their answers reach an event loop |
//! | `threads` | sessions and open indexes of a thread |
//! | `bytes`, `buffers` | keys and values from Python, and the buffer protocol |
//! | `settings` | keyword arguments |
//! | `failure` | exceptions by kind |
//! | `fork` | what a child process may not do |
//!
//! `unsafe` lives in `buffers`, where bytes are copied between far memory and a Python buffer, and in one call of `fork`.

mod buffers;
mod bytes;
mod completions;
mod entries;
mod failure;
mod fork;
mod handle;
mod index;
mod pool;
mod settings;
mod threads;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::completions::Completions;
    #[pymodule_export]
    use crate::entries::Entries;
    #[pymodule_export]
    use crate::fork::after_fork_in_child;
    #[pymodule_export]
    use crate::handle::IndexHandle;
    #[pymodule_export]
    use crate::index::Index;
    #[pymodule_export]
    use crate::pool::{Pool, close_all};
    #[pymodule_export]
    use crate::settings::kinds;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::fork::count_forks()?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
