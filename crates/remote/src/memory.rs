//! A memory node's region, and the record that is kept with it.
//!
//! Invariants: a client that was revoked stays revoked for as long as the memory lives, restarts included: its token is
//! recorded before the revocation is answered; the region's name changes exactly when its content is lost; one process
//! serves a file at a time.
//!
//! `PATH.node`, next to `PATH`, has lines of text: `farindex-node 1 REGION NODE`, then one `revoked TOKEN` for each
//! revoked client, all numbers in hexadecimal. A line that a crash has cut off was never answered, and is skipped.

use crate::token::{Rights, random};
use farindex_fabric::call::{self, CallHandler, CallRefused, RegionView};
use farindex_fabric::{FabricError, Identity, NodeId, ServedRegion};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory of one node.
pub struct NodeMemory {
    region: ServedRegion,
    node: NodeId,
    name: [u8; 16],
    revoked: Mutex<Revoked>,
    calls: Option<Arc<CallHandler>>,
}

#[derive(Default)]
struct Revoked {
    tokens: HashSet<u64>,
    log: Option<File>,
}

fn settings(why: String) -> FabricError {
    FabricError::Settings(why)
}

impl NodeMemory {
    /// Allocates memory in this process, which ends with the process.
    pub fn anonymous(node: NodeId, len: u64) -> Result<Self, FabricError> {
        let name = random().map_err(settings)?;
        Ok(NodeMemory { region: ServedRegion::anonymous(len)?, node, name, revoked: Mutex::default(), calls: None })
    }

    /// Maps a file with its content, or makes a new one of `len` bytes.
    pub fn file(node: NodeId, path: &Path, len: Option<u64>) -> Result<Self, FabricError> {
        let record = record_path(path);
        let refuse = |why: String| FabricError::Region { path: record.display().to_string(), reason: why };
        let fresh = !path.exists();
        let mut options = OpenOptions::new();
        let log = options.read(true).append(true).create(true).truncate(false).mode(0o600).open(&record);
        let mut log = log.map_err(|error| refuse(format!("cannot be opened: {error}")))?;
        log.try_lock().map_err(|_| refuse("another `farindex serve` serves this file; end it first".to_owned()))?;
        if fresh {
            // What an earlier file of this name has left says nothing about the new one.
            log.set_len(0).map_err(|error| refuse(format!("cannot be emptied: {error}")))?;
        }
        let region = ServedRegion::file(path, len)?;
        let mut text = String::new();
        let read = (&mut log).take(64 << 20).read_to_string(&mut text);
        read.map_err(|error| refuse(format!("cannot be read: {error}; restore it, or remove it if no client lives")))?;
        let (name, tokens) = match parse(&text).map_err(refuse)? {
            Some(record) if record.node != node => {
                let is = record.node;
                return Err(refuse(format!("this is memory node {is}: give --node-id {is} in place of {node}")));
            }
            Some(record) => {
                if !text.ends_with('\n') {
                    append(&mut log, "\n").map_err(refuse)?;
                }
                (record.name, record.tokens)
            }
            None => {
                let name: [u8; 16] = random().map_err(settings)?;
                let line = format!("farindex-node 1 {:032x} {:x}\n", u128::from_le_bytes(name), node.index());
                append(&mut log, &line).map_err(refuse)?;
                (name, HashSet::new())
            }
        };
        let revoked = Mutex::new(Revoked { tokens, log: Some(log) });
        Ok(NodeMemory { region, node, name, revoked, calls: None })
    }

    /// Lets the node answer calls by this handler. It runs on the thread that serves the node (UCX: the data plane's
    /// loop; verbs: the control channel's), so it must return soon.
    #[must_use]
    pub fn with_call_handler(self, handler: Arc<CallHandler>) -> Self {
        NodeMemory { calls: Some(handler), ..self }
    }
    /// Does the node answer calls?
    pub fn answers_calls(&self) -> bool {
        self.calls.is_some()
    }
    /// Answers a call of a client with these rights. It must run where nothing of a revoked client runs any more (G6): on
    /// the thread that carries out verbs, or that takes revocations.
    pub fn call(&self, request: &[u8], rights: Rights) -> Result<Vec<u8>, CallRefused> {
        let handler = self.calls.as_deref().ok_or("this memory node answers no calls")?;
        let view = RegionView::shared(self.node, self.region.words());
        let view = if rights == Rights::ReadWrite { view } else { view.read_only() };
        call::answer(handler, &view, request)
    }

    /// The memory.
    pub fn region(&self) -> &ServedRegion {
        &self.region
    }
    /// Its number within the pool.
    pub fn node(&self) -> NodeId {
        self.node
    }
    /// Its name: the same after a restart from the same file, another one otherwise.
    pub fn name(&self) -> [u8; 16] {
        self.name
    }
    /// Was this client revoked?
    pub fn is_revoked(&self, identity: &Identity) -> bool {
        self.revoked.lock().unwrap_or_else(PoisonError::into_inner).tokens.contains(&identity.token)
    }
    /// Revokes a client for good. The error says why that could not be recorded; then nothing has changed.
    pub fn revoke(&self, identity: &Identity) -> Result<(), String> {
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        if revoked.tokens.contains(&identity.token) {
            return Ok(());
        }
        if let Some(log) = &mut revoked.log {
            append(log, &format!("revoked {:x}\n", identity.token))?;
        }
        revoked.tokens.insert(identity.token);
        Ok(())
    }
}

fn record_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".node");
    name.into()
}

fn append(log: &mut File, line: &str) -> Result<(), String> {
    let written = log.write_all(line.as_bytes()).and_then(|()| match log.sync_data() {
        // Some file systems have nothing to synchronise.
        Err(error) if error.kind() == ErrorKind::Unsupported || error.kind() == ErrorKind::InvalidInput => Ok(()),
        other => other,
    });
    written.map_err(|error| format!("cannot be written: {error}"))
}

struct Record {
    name: [u8; 16],
    node: NodeId,
    tokens: HashSet<u64>,
}

/// `None` if there is nothing yet.
fn parse(text: &str) -> Result<Option<Record>, String> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut lines = whole.lines();
    let Some(first) = lines.next() else { return Ok(None) };
    let mut words = first.split_ascii_whitespace();
    let (kind, version) = (words.next(), words.next());
    if kind != Some("farindex-node") || version != Some("1") {
        return Err("it is no record of a memory node of this version".to_owned());
    }
    let damaged = || "its first line is damaged; restore it, or remove it if no client lives".to_owned();
    let name = words.next().and_then(|word| u128::from_str_radix(word, 16).ok()).ok_or_else(damaged)?;
    let number = words.next().and_then(|word| u16::from_str_radix(word, 16).ok()).ok_or_else(damaged)?;
    // A line that was cut off and then ended by the next run names no token that was answered.
    let token = |line: &str| u64::from_str_radix(line.strip_prefix("revoked ")?, 16).ok();
    let tokens = lines.filter_map(token).collect();
    Ok(Some(Record { name: name.to_le_bytes(), node: NodeId::new(number), tokens }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(token: u64) -> Identity {
        Identity { token, ..Identity::default() }
    }

    #[test]
    fn revocations_persist_across_restarts() {
        let path = std::env::temp_dir().join(format!("farindex-node-{}", std::process::id()));
        let node = NodeId::new(2);
        let first = NodeMemory::file(node, &path, Some(1 << 16)).expect("a new file");
        first.revoke(&client(0xabc)).expect("on file");
        let name = first.name();
        let second = NodeMemory::file(node, &path, None);
        assert!(second.is_err_and(|error| error.to_string().contains("another `farindex serve`")));
        drop(first);
        // A crash cut the next line off.
        let record = record_path(&path);
        append(&mut OpenOptions::new().append(true).open(&record).expect("there"), "revoked 1").expect("written");
        let again = NodeMemory::file(node, &path, None).expect("the same file");
        assert_eq!(again.name(), name);
        assert!(again.is_revoked(&client(0xabc)) && !again.is_revoked(&client(1)));
        again.revoke(&client(2)).expect("on file");
        drop(again);
        let again = NodeMemory::file(node, &path, Some(1 << 16)).expect("the same file");
        assert!(again.is_revoked(&client(2)));
        drop(again);
        let wrong = NodeMemory::file(NodeId::new(0), &path, None);
        assert!(wrong.is_err_and(|error| error.to_string().contains("--node-id 2")));
        let wrong = NodeMemory::file(node, &path, Some(1 << 40));
        assert!(wrong.is_err_and(|error| error.to_string().contains("65536")));
        // The pool was removed and made anew: other memory.
        std::fs::remove_file(&path).expect("there");
        let fresh = NodeMemory::file(node, &path, Some(1 << 16)).expect("a new file");
        assert!(fresh.name() != name && !fresh.is_revoked(&client(0xabc)));
        drop(fresh);
        std::fs::remove_file(&path).expect("there");
        std::fs::remove_file(&record).expect("there");
    }
}
