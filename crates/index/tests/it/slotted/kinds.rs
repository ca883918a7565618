//! The two kinds, as far as these tests tell them apart.

use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::audit::Damage;
use farindex_index::slotted::geometry::Geometry;
use farindex_index::{Cuckoo, IndexError, Linear, PoolIndex, Value, cuckoo, linear};
use farindex_pool::Session;
use farindex_pool::audit::Audit;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// A kind whose tables are moved when a test says so.
pub(crate) trait Kind: PoolIndex {
    fn config(slots: u64) -> Self::Config;
    fn geometry(&self) -> Geometry;
    fn root(&self) -> RemotePtr;
    fn in_session(&self) -> &Rc<Session>;
    /// Makes the next table.
    async fn enlarge(&self) -> Result<(), IndexError>;
    /// Moves one region to it.
    async fn move_one(&self) -> Result<(), IndexError>;
}

macro_rules! kind {
    ($kind:ident, $config:expr) => {
        impl Kind for $kind {
            fn config(slots: u64) -> Self::Config {
                let config: Self::Config = $config;
                Self::Config { slots, alpha: 0.0, ..config }
            }
            fn geometry(&self) -> Geometry {
                self.tables()[0].geometry()
            }
            fn root(&self) -> RemotePtr {
                self.tables()[0].root()
            }
            fn in_session(&self) -> &Rc<Session> {
                self.session()
            }
            async fn enlarge(&self) -> Result<(), IndexError> {
                let pin = self.session().pin(self.session().span(OpKind::Maintenance))?;
                self.tables()[0].grow(&pin, PoolIndex::uid(self), true).await
            }
            async fn move_one(&self) -> Result<(), IndexError> {
                let pin = self.session().pin(self.session().span(OpKind::Maintenance))?;
                self.advance(&self.tables()[0], &pin).await.map(drop)
            }
        }
    };
}

kind!(Linear, linear::Config { threshold: 0.95, ..Default::default() });
kind!(Cuckoo, cuckoo::Config { threshold: 0.98, associativity: 1, ..Default::default() });

pub(crate) fn key(i: u32) -> Vec<u8> {
    [b"key ", i.to_le_bytes().as_slice()].concat()
}

/// A value that lies behind its head, or out of band.
pub(crate) fn value(i: u32, what: &str) -> Vec<u8> {
    let mut value = format!("{what} {i}").into_bytes();
    value.resize(value.len() + [0, 200][i as usize % 2], b'.');
    value
}

/// What a walk calls with; no key may come twice.
pub(crate) async fn walk<I: Kind>(index: &I) -> Result<Entries, IndexError> {
    let mut visited = Entries::new();
    let each = async |key: &[u8], value: Value| {
        assert!(visited.insert(key.to_vec(), value.to_vec()).is_none(), "{} is visited twice", key.escape_ascii());
        Ok(())
    };
    let seen = index.visit(each, &mut Damage::fail).await?;
    assert_eq!(seen, visited.len() as u64);
    Ok(visited)
}

/// Entries that an audit counts while other clients work, in all and by where they lie.
pub(crate) async fn counted<I: Kind>(index: &I) -> Result<[u64; 2], IndexError> {
    let report = index.audit(&mut Audit::default(), false).await?;
    assert_eq!(report.problems, Vec::<String>::new());
    let forms = ["tiny_entries", "inline_entries", "heap_entries"].map(|form| report.figure(form));
    Ok([report.entries, forms.iter().sum()])
}

/// Overwrites a word of far memory; returns what it was.
pub(crate) async fn poke<I: Kind>(index: &I, at: RemotePtr, word: u64) -> u64 {
    let span = index.in_session().span(OpKind::Other);
    let old = span.read(at, 8).await.expect("a word").words()[0];
    span.write(at, index.in_session().endpoint().buf_from_words(&[word])).await.expect("written");
    old
}

/// A session of a client of the simulator.
pub(crate) async fn join(pool: &farindex_pool::Pool, me: &farindex_sim::Client) -> Result<Rc<Session>, IndexError> {
    let endpoint = me.connect();
    let client = farindex_pool::Client::register(pool, me.identity(), &endpoint).await?;
    Ok(Rc::new(client.session(endpoint)))
}
