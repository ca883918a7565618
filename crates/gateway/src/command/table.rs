//! The table of commands.

use super::Handler::{Far, Local, Never};
use super::{Handler, connection, expiry, hashes, keys, server, sorted_ranges, sorted_sets, strings};

/// What a command is.
pub(crate) struct Command {
    /// In lower case.
    pub(crate) name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub(crate) arity: i32,
    pub(crate) flags: Flags,
    /// First key, last key (-1: the last argument), step; zeros if it has no keys.
    pub(crate) keys: (i32, i32, i32),
    pub(crate) group: &'static str,
    /// Its arguments.
    pub(crate) syntax: &'static str,
    pub(crate) handler: Handler,
}

/// What clients are told about a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u8);

impl Flags {
    const NONE: Flags = Flags(0);
    const READ: Flags = Flags(1);
    const WRITE: Flags = Flags(2);
    const FAST: Flags = Flags(4);
    const ANYBODY: Flags = Flags(8);

    const fn and(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
    /// May a client run it that has not shown the password?
    pub(crate) fn anybody(self) -> bool {
        self.0 & Flags::ANYBODY.0 != 0
    }
    /// Their names in the protocol.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let names =
            [(Flags::READ, "readonly"), (Flags::WRITE, "write"), (Flags::FAST, "fast"), (Flags::ANYBODY, "no_auth")];
        names.into_iter().filter(move |(flag, _)| self.0 & flag.0 != 0).map(|(_, name)| name)
    }
}

const R: Flags = Flags::READ;
const W: Flags = Flags::WRITE;
const RF: Flags = Flags::READ.and(Flags::FAST);
const WF: Flags = Flags::WRITE.and(Flags::FAST);
const N: Flags = Flags::NONE;
const A: Flags = Flags::FAST.and(Flags::ANYBODY);
/// One key, the first argument.
const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);
const NO: (i32, i32, i32) = (0, 0, 0);

macro_rules! far {
    ($name:literal, $arity:literal, $flags:expr, $keys:expr, $group:literal, $syntax:literal, $handler:path) => {
        Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            group: $group,
            syntax: $syntax,
            handler: Far(|cx, args| Box::pin($handler(cx, args))),
        }
    };
}
macro_rules! local {
    ($name:literal, $arity:literal, $flags:expr, $group:literal, $syntax:literal, $handler:path) => {
        Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: NO,
            group: $group,
            syntax: $syntax,
            handler: Local($handler),
        }
    };
}

/// Every command there is, by name.
#[rustfmt::skip]
pub(crate) static COMMANDS: &[Command] = &[
    far!("append", 3, WF, ONE, "string", "key value", strings::append),
    local!("auth", -2, A, "connection", "[username] password", connection::auth),
    local!("client", -2, N, "connection", "ID | GETNAME | SETNAME name | SETINFO LIB-NAME|LIB-VER value | LIST | INFO | NO-EVICT ON|OFF", connection::client),
    local!("command", -1, N, "server", "[COUNT | LIST | INFO name ... | DOCS name ...]", server::command),
    local!("config", -2, N, "server", "GET pattern ...", server::config),
    far!("dbsize", 1, R, NO, "server", "", keys::dbsize),
    far!("decr", 2, WF, ONE, "string", "key", strings::decr),
    far!("decrby", 3, WF, ONE, "string", "key number", strings::decrby),
    far!("del", -2, W, ALL, "generic", "key [key ...]", keys::del),
    local!("echo", 2, Flags::FAST, "connection", "message", connection::echo),
    far!("exists", -2, RF, ALL, "generic", "key [key ...]", keys::exists),
    far!("expire", -3, WF, ONE, "generic", "key seconds [NX|XX|GT|LT]", expiry::expire),
    far!("expireat", -3, WF, ONE, "generic", "key unix-time-seconds [NX|XX|GT|LT]", expiry::expireat),
    far!("expiretime", 2, RF, ONE, "generic", "key", expiry::expiretime),
    far!("flushall", -1, W, NO, "server", "[ASYNC|SYNC]", keys::flush),
    far!("flushdb", -1, W, NO, "server", "[ASYNC|SYNC]", keys::flush),
    far!("get", 2, RF, ONE, "string", "key", strings::get),
    far!("getdel", 2, WF, ONE, "string", "key", strings::getdel),
    far!("getex", -2, WF, ONE, "string", "key [EX|PX|EXAT|PXAT time | PERSIST]", strings::getex),
    far!("getrange", 4, R, ONE, "string", "key start end", strings::getrange),
    far!("getset", 3, WF, ONE, "string", "key value", strings::getset),
    far!("hdel", -3, WF, ONE, "hash", "key field [field ...]", hashes::hdel),
    local!("hello", -1, A, "connection", "[2|3 [AUTH username password] [SETNAME name]]", connection::hello),
    far!("hexists", 3, RF, ONE, "hash", "key field", hashes::hexists),
    far!("hget", 3, RF, ONE, "hash", "key field", hashes::hget),
    far!("hgetall", 2, R, ONE, "hash", "key", hashes::hgetall),
    far!("hincrby", 4, WF, ONE, "hash", "key field number", hashes::hincrby),
    far!("hincrbyfloat", 4, WF, ONE, "hash", "key field number", hashes::hincrbyfloat),
    far!("hkeys", 2, R, ONE, "hash", "key", hashes::hkeys),
    far!("hlen", 2, RF, ONE, "hash", "key", hashes::hlen),
    far!("hmget", -3, RF, ONE, "hash", "key field [field ...]", hashes::hmget),
    far!("hmset", -4, WF, ONE, "hash", "key field value [field value ...]", hashes::hmset),
    far!("hscan", -3, R, ONE, "hash", "key cursor [MATCH pattern] [COUNT count] [NOVALUES]", hashes::hscan),
    far!("hset", -4, WF, ONE, "hash", "key field value [field value ...]", hashes::hset),
    far!("hsetnx", 4, WF, ONE, "hash", "key field value", hashes::hsetnx),
    far!("hstrlen", 3, RF, ONE, "hash", "key field", hashes::hstrlen),
    far!("hvals", 2, R, ONE, "hash", "key", hashes::hvals),
    far!("incr", 2, WF, ONE, "string", "key", strings::incr),
    far!("incrby", 3, WF, ONE, "string", "key number", strings::incrby),
    far!("incrbyfloat", 3, WF, ONE, "string", "key number", strings::incrbyfloat),
    local!("info", -1, N, "server", "[section ...]", server::info),
    far!("keys", 2, R, NO, "generic", "pattern", keys::keys),
    far!("mget", -2, RF, ALL, "string", "key [key ...]", strings::mget),
    far!("mset", -3, W, PAIRS, "string", "key value [key value ...]", strings::mset),
    far!("persist", 2, WF, ONE, "generic", "key", expiry::persist),
    far!("pexpire", -3, WF, ONE, "generic", "key milliseconds [NX|XX|GT|LT]", expiry::pexpire),
    far!("pexpireat", -3, WF, ONE, "generic", "key unix-time-milliseconds [NX|XX|GT|LT]", expiry::pexpireat),
    far!("pexpiretime", 2, RF, ONE, "generic", "key", expiry::pexpiretime),
    local!("ping", -1, Flags::FAST, "connection", "[message]", connection::ping),
    far!("psetex", 4, W, ONE, "string", "key milliseconds value", strings::psetex),
    far!("pttl", 2, RF, ONE, "generic", "key", expiry::pttl),
    local!("quit", -1, A, "connection", "", connection::quit),
    far!("randomkey", 1, R, NO, "generic", "", keys::randomkey),
    local!("reset", 1, A, "connection", "", connection::reset),
    far!("scan", -2, R, NO, "generic", "cursor [MATCH pattern] [COUNT count] [TYPE type]", keys::scan),
    local!("select", 2, Flags::FAST, "connection", "0", connection::select),
    far!("set", -3, W, ONE, "string", "key value [NX|XX] [GET] [EX|PX|EXAT|PXAT time | KEEPTTL]", strings::set),
    far!("setex", 4, W, ONE, "string", "key seconds value", strings::setex),
    far!("setnx", 3, WF, ONE, "string", "key value", strings::setnx),
    far!("strlen", 2, RF, ONE, "string", "key", strings::strlen),
    local!("time", 1, Flags::FAST, "server", "", server::time),
    far!("touch", -2, RF, ALL, "generic", "key [key ...]", keys::exists),
    far!("ttl", 2, RF, ONE, "generic", "key", expiry::ttl),
    far!("type", 2, RF, ONE, "generic", "key", keys::kind),
    far!("unlink", -2, WF, ALL, "generic", "key [key ...]", keys::del),
    far!("zadd", -4, WF, ONE, "sorted-set", "key [NX|XX] [GT|LT] [CH] [INCR] score member [score member ...]", sorted_sets::zadd),
    far!("zcard", 2, R, ONE, "sorted-set", "key", sorted_ranges::zcard),
    far!("zcount", 4, R, ONE, "sorted-set", "key min max", sorted_ranges::zcount),
    far!("zincrby", 4, WF, ONE, "sorted-set", "key number member", sorted_sets::zincrby),
    far!("zlexcount", 4, R, ONE, "sorted-set", "key min max", sorted_ranges::zlexcount),
    far!("zmscore", -3, RF, ONE, "sorted-set", "key member [member ...]", sorted_sets::zmscore),
    far!("zpopmin", -2, W, ONE, "sorted-set", "key [count]", sorted_ranges::zpopmin),
    far!("zrange", -4, R, ONE, "sorted-set", "key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]", sorted_ranges::zrange),
    far!("zrangebylex", -4, R, ONE, "sorted-set", "key min max [LIMIT offset count]", sorted_ranges::zrangebylex),
    far!("zrangebyscore", -4, R, ONE, "sorted-set", "key min max [WITHSCORES] [LIMIT offset count]", sorted_ranges::zrangebyscore),
    far!("zrem", -3, WF, ONE, "sorted-set", "key member [member ...]", sorted_sets::zrem),
    far!("zrevrange", -4, R, ONE, "sorted-set", "key start stop [WITHSCORES]", sorted_ranges::zrevrange),
    far!("zrevrangebylex", -4, R, ONE, "sorted-set", "key max min [LIMIT offset count]", sorted_ranges::zrevrangebylex),
    far!("zrevrangebyscore", -4, R, ONE, "sorted-set", "key max min [WITHSCORES] [LIMIT offset count]", sorted_ranges::zrevrangebyscore),
    far!("zscore", 3, RF, ONE, "sorted-set", "key member", sorted_sets::zscore),
];

/// What Redis has and a gateway has not, and why.
const NEVER: &[(&str, &[&str])] = &[
    (
        "there are no transactions: each command on one key is atomic by itself, and INCR, SET NX and their like need none",
        &["multi", "exec", "discard", "watch", "unwatch", "msetnx"],
    ),
    ("there is no Lua", &["eval", "evalsha", "eval_ro", "evalsha_ro", "script", "function", "fcall", "fcall_ro"]),
    (
        "there is no publish and subscribe",
        &[
            "subscribe",
            "unsubscribe",
            "psubscribe",
            "punsubscribe",
            "publish",
            "pubsub",
            "ssubscribe",
            "sunsubscribe",
            "spublish",
        ],
    ),
    (
        "there are no lists; a sorted set can hold a queue",
        &[
            "lpush",
            "rpush",
            "lpop",
            "rpop",
            "lrange",
            "llen",
            "lindex",
            "lset",
            "lrem",
            "ltrim",
            "linsert",
            "lpushx",
            "rpushx",
            "rpoplpush",
            "lmove",
            "lmpop",
            "lpos",
            "blpop",
            "brpop",
            "brpoplpush",
            "blmove",
            "blmpop",
        ],
    ),
    (
        "there are no sets; a hash or a sorted set can hold members",
        &[
            "sadd",
            "srem",
            "smembers",
            "sismember",
            "smismember",
            "scard",
            "spop",
            "srandmember",
            "smove",
            "sinter",
            "sunion",
            "sdiff",
            "sinterstore",
            "sunionstore",
            "sdiffstore",
            "sintercard",
            "sscan",
        ],
    ),
    (
        "there are no streams",
        &[
            "xadd",
            "xread",
            "xrange",
            "xrevrange",
            "xlen",
            "xdel",
            "xtrim",
            "xgroup",
            "xreadgroup",
            "xack",
            "xclaim",
            "xautoclaim",
            "xpending",
            "xinfo",
            "xsetid",
        ],
    ),
    (
        "there is no master to be copied and no cluster of slots: every gateway serves all keys of the pool",
        &[
            "replicaof",
            "slaveof",
            "psync",
            "sync",
            "replconf",
            "wait",
            "waitaof",
            "role",
            "failover",
            "cluster",
            "asking",
            "readonly",
            "readwrite",
        ],
    ),
    (
        "the pool keeps the data, and no gateway writes files",
        &["save", "bgsave", "bgrewriteaof", "lastsave", "shutdown", "dump", "restore", "migrate"],
    ),
    (
        "this version does not have it",
        &[
            "copy",
            "rename",
            "renamenx",
            "sort",
            "sort_ro",
            "object",
            "setrange",
            "setbit",
            "getbit",
            "bitcount",
            "bitop",
            "bitpos",
            "bitfield",
            "bitfield_ro",
            "lcs",
            "substr",
            "hrandfield",
            "hexpire",
            "httl",
            "zrank",
            "zrevrank",
            "zpopmax",
            "bzpopmin",
            "bzpopmax",
            "zmpop",
            "bzmpop",
            "zrandmember",
            "zremrangebyscore",
            "zremrangebyrank",
            "zremrangebylex",
            "zrangestore",
            "zunion",
            "zinter",
            "zdiff",
            "zunionstore",
            "zinterstore",
            "zdiffstore",
            "zintercard",
            "zscan",
            "geoadd",
            "geodist",
            "geopos",
            "geohash",
            "geosearch",
            "geosearchstore",
            "georadius",
            "georadiusbymember",
            "pfadd",
            "pfcount",
            "pfmerge",
            "swapdb",
            "move",
            "monitor",
            "slowlog",
            "latency",
            "memory",
            "module",
            "acl",
            "debug",
        ],
    ),
];

/// The longest name.
const LONGEST: usize = 24;

/// The command of this name, in upper or lower case; an unknown one is `None`.
pub(crate) fn look_up(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; LONGEST];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    COMMANDS.get(at)
}

/// Why Redis's command of this name is not here, if it is one.
pub(crate) fn why_never(name: &[u8]) -> Option<Handler> {
    NEVER.iter().find_map(|(why, names)| {
        names.iter().any(|never| name.eq_ignore_ascii_case(never.as_bytes())).then_some(Never(why))
    })
}

impl Command {
    /// Does it take so many arguments?
    pub(crate) fn takes(&self, arguments: usize) -> bool {
        let arguments = i32::try_from(arguments).unwrap_or(i32::MAX);
        if self.arity < 0 { arguments >= -self.arity } else { arguments == self.arity }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_command_is_found() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for command in COMMANDS {
            let upper = command.name.to_uppercase();
            assert!(std::ptr::eq(look_up(upper.as_bytes()).expect("it is there"), command));
            assert!(why_never(upper.as_bytes()).is_none(), "{upper} is there and is not");
        }
        assert!(look_up(b"multi").is_none() && look_up(b"").is_none() && look_up(&[b'x'; 100]).is_none());
        assert!(why_never(b"MULTI").is_some() && why_never(b"nonsense").is_none());
    }
}
