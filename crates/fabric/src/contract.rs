//! The fabric's contract: what every index is correct *against*.
//!
//! An index may rely on G1-G6 and on nothing else. The simulator's adversary exploits everything that is not promised,
//! N1-N7 first. The conformance suite has a test for each promise, and for each a broken fabric that the suite detects.
//!
//! # Promised
//!
//! * **G1** Every posted verb completes exactly once, with a result or an error; a deadline turns silence into an
//!   error.
//! * **G2** An aligned 8-byte word is read and written whole.
//! * **G3** CAS and FAA on a word are atomic among themselves, and with reads of it. A CAS that fails writes nothing.
//!   A masked CAS, on fabrics that have it ([`Capabilities::masked_cas`](crate::Capabilities::masked_cas)), is a CAS in
//!   every clause.
//! * **G4** Within a batch to one node, WRITEs take effect in posting order, and before any later READ, CAS or FAA of
//!   that batch. READs, CASes and FAAs of that batch take effect in posting order among themselves (the entries marked
//!   "order is always maintained" in the InfiniBand ordering table, volume 1, section 10.8.3.3).
//! * **G5** A completed WRITE, CAS or FAA is seen by every verb posted afterwards, by any client.
//! * **G6** Once `revoke(client)` has completed, no verb of that client takes effect any more, and no CALL of it; what
//!   has taken effect is in the region. It travels on the control path: a memory node closes the client's connection;
//!   on shared memory the client's process is proved gone, or is ended where the pool's settings allow that; a fabric
//!   that cannot do it says so.
//!
//! # Not promised
//!
//! * **N1** Any order between verbs of different batches in flight, of different connections, or to different nodes.
//! * **N2** Any order of the words within one READ or one WRITE, and any atomicity beyond 8 bytes.
//! * **N3** That a WRITE posted after a READ or an atomic in the same batch waits for it. Where it must, the caller
//!   asks for a fence ([`Batch::fence`](crate::Batch::fence)).
//! * **N4** Atomicity of verbs against the memory node's own CPU, unless the fabric says so
//!   ([`Capabilities::cpu_atomic`](crate::Capabilities::cpu_atomic)). The handler of a CALL runs on that CPU: it reads
//!   and stores each aligned 8-byte word whole, and the words of one handler's run may be of different times. Verbs see
//!   its stores in their order.
//! * **N5** Anything about *when* a WRITE lands that no client awaited, even after its memory has been reused.
//! * **N6** Atomicity of a plain WRITE against a CAS or FAA that succeeds on the same word: release a lock by CAS or
//!   FAA, behind the data in the same batch.
//! * **N7** After an error or a client's crash: each of its posted verbs may have taken effect or not, or may still. G4
//!   holds for what did: if a verb took effect, so did all that G4 orders before it.
//!
//! A fabric may number its connections to a node ([`Transport::connections`](crate::Transport::connections)): then nothing that
//! has failed takes effect on this node any more once there is a later one.
//!
//! # CALL
//!
//! A fabric may have CALL ([`call`](crate::call)), the two-sided message that a handler on the memory node answers from
//! its region, in which it may store words. A CALL is a batch of its own, and completes once (G1); what it has stored by
//! then is seen by every verb posted afterwards (G5). A revoked client's CALLs have no effect (G6). The handler sees what
//! a READ, CAS or FAA has returned before the CALL was posted, whichever client posted it. The completion of a WRITE alone
//! does not promise that, unless the fabric is [`cpu_atomic`](crate::Capabilities::cpu_atomic): a NIC may acknowledge a
//! WRITE before the node's CPU sees it. A READ behind the WRITE in its batch does.
//!
//! # Batches that travel together
//!
//! A batch is posted when it is called, and a fabric may send it together with others of its connection: in one message
//! to a memory node, or with one doorbell. It is sent when no coroutine of its executor can run any more, when so much
//! has been collected that waiting longer would not help, or at once if no executor runs and none is about to. Batches
//! that travel together stay independent: each completes once with its own results (G1), they have no order (N1), and
//! what refuses one of them is no concern of the others. A batch travels whole to each of its nodes, so its own order
//! holds (G4). If the message is lost, N7 holds for each batch in it, and G4 within each. What a client has posted and not
//! sent takes no effect once it is revoked (G6); if it crashes, it never does (N7). Deadlines begin when a batch is
//! posted.
//!
//! # Addresses, lengths, batches
//!
//! READ and WRITE take 8-byte aligned addresses and multiples of 8 bytes, atomics take aligned words. Anything else,
//! and anything out of a region's bounds, is an error of the batch before any of its verbs takes effect, on fabrics
//! that can see it beforehand; elsewhere N7 applies. A batch may span nodes; order is promised within a node alone. A
//! batch costs one round trip, however many verbs it holds, and however many others travel with it.
