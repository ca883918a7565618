//! Coverage marks of the indexes: as in the pool ([`farindex_pool::marks`]).

pub(crate) use farindex_pool::mark;
