//! Iterators over an index.
//!
//! Invariant: between two items nothing of the pool is pinned and the session does not run, so the user of an iterator
//! may call any method of the session, and may take its time.

use crate::Error;
use crate::index::{Index, borrowed};
use crate::session::Session;
use farindex_index::audit::Damage;
use farindex_index::{AnyIndex, Entry, IndexError, OrderedIndex, Value};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// Entries that a [`Range`] fetches by one scan.
const PAGE: usize = 256;

/// An entry, or a place that cannot be read.
type Found = Result<Entry, Damage>;

/// The future of a walk through an index.
type Visit = Pin<Box<dyn Future<Output = Result<(), IndexError>>>>;

/// A walk through a whole index, one item at a time.
pub(crate) struct Walk {
    // Dropped before the session that it runs in.
    walk: Option<Visit>,
    found: Rc<RefCell<VecDeque<Found>>>,
    session: Session,
}

impl Walk {
    pub(crate) fn new(session: Session, index: Rc<AnyIndex>) -> Self {
        let found = Rc::new(RefCell::new(VecDeque::new()));
        let (entries, damages) = (Rc::clone(&found), Rc::clone(&found));
        let walk = async move {
            // Hands out one entry, and suspends the walk until the next one is asked for.
            let each = async |key: &[u8], value: Value| {
                entries.borrow_mut().push_back(Ok(Entry { key: Value::from(key), value }));
                let mut suspended = false;
                poll_fn(|_| if std::mem::replace(&mut suspended, true) { Poll::Ready(()) } else { Poll::Pending })
                    .await;
                Ok(())
            };
            let mut damaged = |damage: Damage| {
                damages.borrow_mut().push_back(Err(damage));
                Ok(())
            };
            index.visit(each, &mut damaged).await.map(drop)
        };
        Walk { walk: Some(Box::pin(walk)), found, session }
    }
}

impl Iterator for Walk {
    type Item = Result<Found, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.found.borrow_mut().pop_front() {
                return Some(Ok(found));
            }
            let walk = self.walk.as_mut()?;
            let found = &self.found;
            let ended = self.session.block_on(poll_fn(|cx| match walk.as_mut().poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending if !found.borrow().is_empty() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }));
            if let Some(ended) = ended {
                self.walk = None;
                if let Err(error) = ended {
                    return Some(Err(error.into()));
                }
            }
        }
    }
}

/// Iterator over all entries of an index: see [`Index::iter`].
pub struct Iter {
    walk: Option<Walk>,
    name: String,
}

impl Iter {
    pub(crate) fn new(walk: Walk, name: &str) -> Self {
        Iter { walk: Some(walk), name: name.to_owned() }
    }
}

impl Iterator for Iter {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.walk.as_mut()?.next()? {
            Ok(Ok(entry)) => Some(Ok(entry)),
            Ok(Err(damage)) => {
                self.walk = None;
                damage.within(format_args!("index {:?}", self.name)).fail().err().map(|error| Err(error.into()))
            }
            Err(error) => {
                self.walk = None;
                Some(Err(error))
            }
        }
    }
}

/// Iterator over a range of an ordered index: see [`Index::range`].
pub struct Range {
    page: std::vec::IntoIter<Entry>,
    /// Where the next scan begins; `None` if there is none.
    from: Option<Bound<Vec<u8>>>,
    to: Bound<Vec<u8>>,
    index: Index,
}

impl Range {
    pub(crate) fn new(index: Index, from: Bound<Vec<u8>>, to: Bound<Vec<u8>>) -> Self {
        Range { page: Vec::new().into_iter(), from: Some(from), to, index }
    }
}

impl Iterator for Range {
    type Item = Result<Entry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.page.next() {
            return Some(Ok(entry));
        }
        let from = self.from.take()?;
        let index = self.index.async_handle();
        match self.index.session().block_on(index.scan(borrowed(&from, &self.to), PAGE)) {
            Ok(page) => {
                if page.len() == PAGE {
                    self.from = page.last().map(|entry| Bound::Excluded(entry.key.to_vec()));
                }
                self.page = page.into_iter();
                self.page.next().map(Ok)
            }
            Err(error) => Some(Err(error.into())),
        }
    }
}
