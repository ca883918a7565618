//! An index as a user sees it.

use crate::pool::Session;
use crate::{Error, Insert, Remove, Update, Upsert};
use farindex_index::AnyIndex;
use farindex_index::audit::Damage;
use farindex_index::{IndexAudit, IndexError, PointIndex, Value};
use farindex_pool::audit::Audit;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// An open index. The methods block until the operation is done; [`Index::concurrent`] is the way to have many in flight.
///
/// A method that blocks panics inside of a coroutine of its own session: see [`Session::block_on`].
#[derive(Clone)]
pub struct Index {
    // Dropped before the session it lives in.
    index: Rc<AnyIndex>,
    name: Rc<str>,
    session: Session,
}

impl Index {
    pub(crate) fn new(session: Session, name: &str, index: AnyIndex) -> Self {
        Index { index: Rc::new(index), name: name.into(), session }
    }

    /// The value of a key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let found = self.session.block_on(self.index.get(key.as_ref()))?;
        Ok(found.map(|value| value.to_vec()))
    }
    /// Adds a key that is absent.
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Insert, Error> {
        Ok(self.session.block_on(self.index.insert(key.as_ref(), value.as_ref()))?)
    }
    /// Changes the value of a key that is present.
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Update, Error> {
        Ok(self.session.block_on(self.index.update(key.as_ref(), value.as_ref()))?)
    }
    /// Sets the value of a key, present or not.
    pub fn upsert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Upsert, Error> {
        Ok(self.session.block_on(self.index.upsert(key.as_ref(), value.as_ref()))?)
    }
    /// Removes a key.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<Remove, Error> {
        Ok(self.session.block_on(self.index.remove(key.as_ref()))?)
    }

    /// Counts its entries and memory, and checks every entry, by walking it beside whoever works with it.
    pub fn audit(&self) -> Result<IndexAudit, Error> {
        Ok(self.session.block_on(self.index.audit(&mut Audit::default(), false))?)
    }
    /// Calls `each` with every key and value until it breaks off; returns how often. What others change meanwhile may be
    /// seen or not. Nothing of the pool is held while `each` runs, so it may take its time, and it may call the methods of
    /// this index and of its session. Damage is an error, which names the place.
    pub fn for_each(&self, each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<u64, Error> {
        let fail = |damage: Damage| damage.within(format_args!("index {:?}", self.name)).fail();
        self.walk(each, fail)
    }
    /// The same, but what cannot be read is reported to `damaged`, and the walk goes on behind it. How many entries were there,
    /// nothing tells. Every value that lies in a block was checked by its checksum; of a record within a slot, as linear probing has
    /// them, only the shape is checked.
    pub fn for_each_skipping_damage(
        &self,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
        mut damaged: impl FnMut(Damage),
    ) -> Result<u64, Error> {
        self.walk(each, |damage| {
            damaged(damage);
            Ok(())
        })
    }

    fn walk(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
        mut damaged: impl FnMut(Damage) -> Result<(), IndexError>,
    ) -> Result<u64, Error> {
        // The walk hands out one entry and stops; `each` gets it when the session does not run: see `Session::block_on`.
        let handed: RefCell<(Vec<u8>, Option<Value>)> = RefCell::default();
        let broken = Cell::new(false);
        let walk = async |key: &[u8], value: Value| {
            {
                let (last, waiting) = &mut *handed.borrow_mut();
                last.clear();
                last.extend_from_slice(key);
                *waiting = Some(value);
            }
            let mut stopped = false;
            poll_fn(|_| if std::mem::replace(&mut stopped, true) { Poll::Ready(()) } else { Poll::Pending }).await;
            // Any error ends the walk.
            if broken.get() { Err(IndexError::Dropped) } else { Ok(()) }
        };
        let mut walk = pin!(self.index.visit(walk, &mut damaged));
        let mut calls = 0;
        loop {
            let ended = self.session.block_on(poll_fn(|cx| match walk.as_mut().poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Some(ended)),
                Poll::Pending if handed.borrow().1.is_some() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }));
            match ended {
                Some(Err(_)) if broken.get() => return Ok(calls),
                Some(Err(error)) => return Err(error.into()),
                Some(Ok(_)) => return Ok(calls),
                None => {}
            }
            let (key, value) = &mut *handed.borrow_mut();
            if let Some(value) = value.take() {
                calls += 1;
                broken.set(each(key, &value).is_break());
            }
        }
    }

    /// The same index with operations that are futures ([`PointIndex`]): start many, then wait for them with
    /// [`Session::block_on`].
    pub fn concurrent(&self) -> Rc<AnyIndex> {
        Rc::clone(&self.index)
    }
    /// The session it was opened in.
    pub fn session(&self) -> &Session {
        &self.session
    }
}
