//! Sessions, and the indexes that they open.

use crate::fork::Birthplace;
use crate::index::farindex_index;
use crate::pool::farindex_pool;
use crate::raw;
use crate::status::{Failure, Status, farindex_status, guard};
use farindex::{Index, IndexConfig, KINDS, Session};
use std::ffi::c_char;
use std::mem::ManuallyDrop;
use std::thread::ThreadId;

/// What one thread works with: a connection to the pool. Each thread opens its own. Only that thread may use it, its indexes, and
/// close them; every function checks that, and returns FARINDEX_ERROR_WRONG_THREAD without doing anything else.
pub struct farindex_session {
    session: Owned<Session>,
}

/// Something that one thread may use.
pub(crate) struct Owned<T> {
    thread: ThreadId,
    birthplace: Birthplace,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        let thread = std::thread::current().id();
        Owned { thread, birthplace: Birthplace::here(), value: ManuallyDrop::new(value) }
    }
    /// The value, if this is its thread.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        self.birthplace.check()?;
        if self.thread == std::thread::current().id() {
            return Ok(&self.value);
        }
        let what = "a session and its indexes belong to the thread that opened the session: open one for each thread";
        Err(Failure::new(Status::FARINDEX_ERROR_WRONG_THREAD, what))
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.birthplace.is_forked() {
            // SAFETY: this is the only place that drops the value, and nobody uses it afterwards. In a child of fork it is forgotten.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl farindex_session {
    /// # Safety
    ///
    /// As for [`raw::handle`].
    unsafe fn of<'a>(session: *const farindex_session) -> Result<&'a Session, Failure> {
        // SAFETY: the caller's promise.
        unsafe { raw::handle("session", session)? }.session.get()
    }
}

/// Opens a session for the calling thread.
///
/// # Safety
///
/// `pool` is open; `out` points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_session_open(
    pool: *const farindex_pool,
    out: *mut *mut farindex_session,
) -> farindex_status {
    guard(|| {
        let open = || {
            // SAFETY: what the header asks of the caller.
            let pool = unsafe { raw::handle("pool", pool)? };
            pool.birthplace.check()?;
            Ok(farindex_session { session: Owned::new(pool.pool.session()?) })
        };
        // SAFETY: the same.
        unsafe { raw::give(out, open)? };
        Ok(Status::FARINDEX_OK)
    })
}

/// Closes a session; null is none. Its indexes may be closed before or afterwards.
///
/// # Safety
///
/// `session` was not closed yet. Unless the status is FARINDEX_ERROR_WRONG_THREAD or FARINDEX_ERROR_FORKED, it must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_session_close(session: *mut farindex_session) -> farindex_status {
    guard(|| {
        if !session.is_null() {
            // SAFETY: what the header asks of the caller. The thread is compared before the session is taken back.
            unsafe {
                farindex_session::of(session)?;
                drop(raw::take(session));
            }
        }
        Ok(Status::FARINDEX_OK)
    })
}

/// What to do with a name.
enum How {
    Create,
    Open,
    OpenOrCreate,
}

/// # Safety
///
/// As the functions that call it ask of their callers.
unsafe fn open(
    session: *const farindex_session,
    name: *const c_char,
    kind: *const c_char,
    settings: *const c_char,
    how: &How,
    out: *mut *mut farindex_index,
) -> farindex_status {
    guard(|| {
        let open = || {
            // SAFETY: the caller's promise.
            let (session, name, kind, settings) = unsafe {
                (
                    farindex_session::of(session)?,
                    raw::text("name", name)?,
                    raw::optional_text("kind", kind)?,
                    raw::optional_text("settings", settings)?,
                )
            };
            let mut builder = session.index(name);
            if kind.is_some() || settings.is_some() {
                builder = builder.config(config(kind, settings)?);
            }
            let index = match how {
                How::Create => builder.create()?,
                How::Open => builder.open()?,
                How::OpenOrCreate => builder.open_or_create()?,
            };
            Ok(farindex_index::new(index))
        };
        // SAFETY: the caller's promise.
        unsafe { raw::give(out, open)? };
        Ok(Status::FARINDEX_OK)
    })
}

/// The settings of a kind, with those that a JSON object changes.
fn config(kind: Option<&str>, settings: Option<&str>) -> Result<IndexConfig, Failure> {
    let bad = |what: String| Failure::new(Status::FARINDEX_ERROR_CONFIG, what);
    let kind = kind.unwrap_or_else(|| IndexConfig::default().kind());
    let Some(usual) = IndexConfig::of_kind(kind) else {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(bad(format!("there is no kind {kind:?}: there are {}", known.join(", "))));
    };
    let mut all = serde_json::to_value(usual).unwrap_or_default();
    let changes = match serde_json::from_str(settings.unwrap_or("{}")) {
        Ok(serde_json::Value::Object(changes)) => changes,
        Ok(_) => return Err(bad("settings are a JSON object, such as {\"leaf_span\": 32}".to_owned())),
        Err(error) => return Err(bad(format!("settings are a JSON object: {error}"))),
    };
    for (name, value) in changes {
        match all.as_object_mut().and_then(|all| all.get_mut(&name)).filter(|_| name != "kind") {
            Some(place) => *place = value,
            None => return Err(bad(format!("{kind} has no setting {name:?}; `farindex index kinds` lists them"))),
        }
    }
    serde_json::from_value(all).map_err(|error| bad(format!("settings of {kind}: {error}")))
}

/// Creates an index and opens it. `kind` is "shard", "race", "sephash", "linear", "cuckoo", "sherman", "chime" or "dex"; null is
/// "shard". `settings` is a JSON object with the settings that differ from the kind's own; null is none.
///
/// # Safety
///
/// `session` is open; `name`, `kind` and `settings` are strings with a zero byte at their end, or null where that is allowed; `out`
/// points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_index_create(
    session: *const farindex_session,
    name: *const c_char,
    kind: *const c_char,
    settings: *const c_char,
    out: *mut *mut farindex_index,
) -> farindex_status {
    // SAFETY: what the header asks of the caller.
    unsafe { open(session, name, kind, settings, &How::Create, out) }
}

/// Opens an index that exists: of this kind, or of any if `kind` is null.
///
/// # Safety
///
/// As for farindex_index_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_index_open(
    session: *const farindex_session,
    name: *const c_char,
    kind: *const c_char,
    out: *mut *mut farindex_index,
) -> farindex_status {
    // SAFETY: what the header asks of the caller.
    unsafe { open(session, name, kind, std::ptr::null(), &How::Open, out) }
}

/// Opens an index if it exists, else creates it as farindex_index_create does: what processes do that start at the same time.
///
/// # Safety
///
/// As for farindex_index_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_index_open_or_create(
    session: *const farindex_session,
    name: *const c_char,
    kind: *const c_char,
    settings: *const c_char,
    out: *mut *mut farindex_index,
) -> farindex_status {
    // SAFETY: what the header asks of the caller.
    unsafe { open(session, name, kind, settings, &How::OpenOrCreate, out) }
}

/// Drops an index of the pool. A client that has it open gets FARINDEX_ERROR_DROPPED from its next operation.
///
/// # Safety
///
/// `session` is open; `name` is a string with a zero byte at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farindex_index_drop(session: *const farindex_session, name: *const c_char) -> farindex_status {
    guard(|| {
        // SAFETY: what the header asks of the caller.
        unsafe { farindex_session::of(session)?.drop_index(raw::text("name", name)?)? };
        Ok(Status::FARINDEX_OK)
    })
}

impl farindex_index {
    fn new(index: Index) -> Self {
        farindex_index { index: Owned::new(index) }
    }
}
