//! The simplest index over verbs: one word for each of a few keys, zero for an absent one. Linearizable by itself.

use farindex_fabric::{Endpoint, NodeId, OpKind, RemotePtr, Span};
use farindex_index::{
    IndexError, Insert, Limits, PointIndex, Remove, RemoveIf, Replace, Update, Upsert, Value, upsert_each,
};

pub(crate) struct Toy(pub(crate) Endpoint);

fn place(key: &[u8]) -> RemotePtr {
    RemotePtr::new(NodeId::new(0), 4096 + u64::from(key.first().copied().unwrap_or(0)) * 64)
}

/// Values are up to 7 bytes: the word is their length and they.
fn word(value: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[0] = value.len() as u8 + 1;
    bytes[1..1 + value.len()].copy_from_slice(value);
    u64::from_le_bytes(bytes)
}

fn value(word: u64) -> Option<Value> {
    let bytes = word.to_le_bytes();
    (word != 0).then(|| Value::from(&bytes[1..usize::from(bytes[0])]))
}

impl Toy {
    /// Replaces what is there unless `stop` says no; returns what was there.
    async fn swap(&self, span: Span, key: &[u8], to: u64, stop: impl Fn(u64) -> bool) -> Result<u64, IndexError> {
        let at = place(key);
        let mut seen = span.read(at, 8).await?.words()[0];
        while !stop(seen) {
            let old = span.cas(at, seen, to).await?;
            if old == seen {
                break;
            }
            seen = old;
        }
        Ok(seen)
    }
}

impl PointIndex for Toy {
    fn limits(&self) -> Limits {
        Limits { key: 1, value: 7 }
    }
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, IndexError> {
        Ok(value(self.0.span(OpKind::Get).read(place(key), 8).await?.words()[0]))
    }
    async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, IndexError> {
        let span = self.0.span(OpKind::Get);
        let mut batch = span.batch();
        let tickets: Vec<_> = keys.iter().map(|key| batch.read(place(key), 8)).collect();
        let mut done = batch.post().await?;
        Ok(tickets.into_iter().map(|ticket| value(done.buf(ticket).words()[0])).collect())
    }
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insert, IndexError> {
        let old = self.swap(self.0.span(OpKind::Insert), key, word(value), |seen| seen != 0).await?;
        Ok(if old == 0 { Insert::Inserted } else { Insert::Exists })
    }
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<Update, IndexError> {
        let old = self.swap(self.0.span(OpKind::Update), key, word(value), |seen| seen == 0).await?;
        Ok(if old == 0 { Update::Absent } else { Update::Updated })
    }
    async fn upsert(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        let old = self.swap(self.0.span(OpKind::Upsert), key, word(value), |_| false).await?;
        Ok(if old == 0 { Upsert::Inserted } else { Upsert::Updated })
    }
    async fn upsert_with_outcome(&self, key: &[u8], value: &[u8]) -> Result<Upsert, IndexError> {
        self.upsert(key, value).await
    }
    async fn upsert_many(&self, pairs: &[(&[u8], &[u8])]) -> Vec<Result<Upsert, IndexError>> {
        upsert_each(self, pairs).await
    }
    async fn remove(&self, key: &[u8]) -> Result<Remove, IndexError> {
        let old = self.swap(self.0.span(OpKind::Remove), key, 0, |seen| seen == 0).await?;
        Ok(if old == 0 { Remove::Absent } else { Remove::Removed })
    }
    async fn replace(&self, key: &[u8], expected: &[u8], value: &[u8]) -> Result<Replace, IndexError> {
        let differs = |seen: u64| seen == 0 || self::value(seen).as_deref() != Some(expected);
        let old = self.swap(self.0.span(OpKind::Update), key, word(value), differs).await?;
        Ok(match old {
            0 => Replace::Absent,
            old if differs(old) => Replace::Differs,
            _ => Replace::Replaced,
        })
    }
    async fn remove_if(&self, key: &[u8], expected: &[u8]) -> Result<RemoveIf, IndexError> {
        let differs = |seen: u64| seen == 0 || value(seen).as_deref() != Some(expected);
        let old = self.swap(self.0.span(OpKind::Remove), key, 0, differs).await?;
        Ok(match old {
            0 => RemoveIf::Absent,
            old if differs(old) => RemoveIf::Differs,
            _ => RemoveIf::Removed,
        })
    }
    fn cache_bytes(&self) -> u64 {
        0
    }
}
