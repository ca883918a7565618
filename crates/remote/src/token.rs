//! Tokens: what a client may do, and how it proves that.
//!
//! Invariants: a token never travels: a client proves that it knows one by an HMAC-SHA-256, keyed with the token, over
//! a fresh challenge and all that it claims; proofs are compared in constant time, with every token of the node, so
//! that the time says nothing about which one was close; a token is never printed.
//!
//! The channel is not encrypted, and an attacker that can change packets can take over an admitted connection: use
//! networks that are trusted that far (docs/protocols/remote.md).

use crate::control::put_claim;
use farindex_fabric::{Identity, NodeId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::path::Path;

/// Bytes of a challenge.
pub const NONCE_LEN: usize = 32;
/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;
/// Bytes of a token at least.
pub const MIN_TOKEN: usize = 16;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rights {
    /// READ alone.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rights::ReadOnly => "read-only",
            Rights::ReadWrite => "read-write",
        })
    }
}

/// A shared secret. Two are compared by their proofs alone.
#[derive(Clone, Default)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

fn mac(token: &Token, nonce: &[u8; NONCE_LEN], node: Option<NodeId>, identity: &Identity) -> Option<Hmac<Sha256>> {
    // Any length of key will do, so there is always one.
    let mut mac = Hmac::<Sha256>::new_from_slice(&token.0).ok()?;
    let mut claim = b"farindex control 1".to_vec();
    claim.extend_from_slice(nonce);
    put_claim(&mut claim, node, identity);
    mac.update(&claim);
    Some(mac)
}

impl Token {
    /// From its text.
    pub fn new(text: &str) -> Self {
        Token(text.as_bytes().to_vec())
    }
    /// Computes the proof that a holder of this token makes this claim.
    pub fn prove(&self, nonce: &[u8; NONCE_LEN], node: Option<NodeId>, identity: &Identity) -> [u8; PROOF_LEN] {
        mac(self, nonce, node, identity).map_or([0; PROOF_LEN], |mac| mac.finalize().into_bytes().into())
    }
    fn verify(
        &self,
        proof: &[u8; PROOF_LEN],
        nonce: &[u8; NONCE_LEN],
        node: Option<NodeId>,
        identity: &Identity,
    ) -> bool {
        mac(self, nonce, node, identity).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// The tokens of a file, each with what it allows.
#[derive(Debug, Clone, Default)]
pub struct Tokens(Vec<(Rights, Token)>);

impl Tokens {
    /// No tokens: every client that reaches the node may do everything.
    pub fn open() -> Self {
        Tokens::default()
    }
    /// Is there none?
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }
    /// Reads a file of lines `read-write TOKEN` and `read-only TOKEN`; `#` begins a comment.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }
    /// Parses the file's text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = |why: &str| format!("line {}: {why}", number + 1);
            let (rights, token) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rights = match rights {
                "read-write" => Rights::ReadWrite,
                "read-only" => Rights::ReadOnly,
                _ => return Err(bad("a line is `read-write TOKEN` or `read-only TOKEN`")),
            };
            let token = token.trim();
            if token.len() < MIN_TOKEN {
                return Err(bad(&format!(
                    "a token has at least {MIN_TOKEN} characters: make one by `openssl rand -hex 32`"
                )));
            }
            tokens.push((rights, Token::new(token)));
        }
        if tokens.is_empty() { Err("it holds no token".to_owned()) } else { Ok(Tokens(tokens)) }
    }
    /// The token that a client shows: the first of its file. An empty one if there is no file.
    pub fn first(&self) -> Token {
        self.0.first().map(|(_, token)| token.clone()).unwrap_or_default()
    }
    /// Returns the rights of the client that sent this proof; `None` if it knows none of the tokens.
    pub fn rights(
        &self,
        proof: &[u8; PROOF_LEN],
        nonce: &[u8; NONCE_LEN],
        node: Option<NodeId>,
        identity: &Identity,
    ) -> Option<Rights> {
        if self.is_open() {
            return Some(Rights::ReadWrite);
        }
        let mut granted = None;
        for (rights, token) in &self.0 {
            if token.verify(proof, nonce, node, identity) && granted != Some(Rights::ReadWrite) {
                granted = Some(*rights);
            }
        }
        granted
    }
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| format!("the system gives no random bytes: {error}"))?;
    Ok(bytes)
}

/// A random number that cannot be guessed, and is not 0.
pub fn random_u64() -> Result<u64, String> {
    random().map(|bytes| u64::from_le_bytes(bytes).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# tokens\nread-write 0123456789abcdef0\nread-only  fedcba9876543210 # for reports\n";

    #[test]
    fn a_proof_is_good_for_one_claim() {
        let tokens = Tokens::parse(FILE).expect("two tokens");
        let identity = Identity { token: 5, ..Identity::default() };
        let node = Some(NodeId::new(1));
        let proof = tokens.first().prove(&[1; NONCE_LEN], node, &identity);
        assert_eq!(tokens.rights(&proof, &[1; NONCE_LEN], node, &identity), Some(Rights::ReadWrite));
        let reader = Token::new("fedcba9876543210").prove(&[1; NONCE_LEN], node, &identity);
        assert_eq!(tokens.rights(&reader, &[1; NONCE_LEN], node, &identity), Some(Rights::ReadOnly));
        assert_eq!(tokens.rights(&proof, &[2; NONCE_LEN], node, &identity), None);
        assert_eq!(tokens.rights(&proof, &[1; NONCE_LEN], None, &identity), None);
        assert_eq!(tokens.rights(&proof, &[1; NONCE_LEN], node, &Identity::default()), None);
        assert_eq!(tokens.rights(&[0; PROOF_LEN], &[1; NONCE_LEN], node, &identity), None);
        let nothing = Token::default().prove(&[1; NONCE_LEN], node, &identity);
        assert_eq!(tokens.rights(&nothing, &[1; NONCE_LEN], node, &identity), None);
        assert_eq!(Tokens::open().rights(&nothing, &[1; NONCE_LEN], node, &identity), Some(Rights::ReadWrite));
    }

    #[test]
    fn files_that_make_no_sense_are_refused() {
        for text in ["", "# nothing\n", "read-write\n", "read-write short\n", "admin 0123456789abcdef0\n"] {
            assert!(Tokens::parse(text).is_err(), "{text:?}");
        }
        let shown = format!("{:?}", Tokens::parse(FILE).expect("two tokens"));
        assert!(!shown.contains("0123456789abcdef"), "{shown}");
    }
}
