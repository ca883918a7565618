/*
 * farindex: indexes in far memory, that any number of processes use at once without a server in between.
 *
 * Generated from the source of the crate farindex-c; do not edit it.
 *
 * Ownership. A function that opens something gives out a handle, which the caller closes once, by the function of its type. On
 * failure the handle is null. Closing null does nothing. A handle keeps open what it stands on, so the order does not matter. Keys
 * and values that are passed in are the caller's, and are not used after the call. The library gives out no memory that the caller
 * frees.
 *
 * Threads. Any thread may use a pool. A session and its indexes belong to the thread that opened the session: other threads get
 * FARINDEX_ERROR_WRONG_THREAD. Each thread opens a session of its own.
 *
 * Processes. Each process opens the pool itself, also a child of fork: what it has inherited gives FARINDEX_ERROR_FORKED. Any process
 * may be killed. What it has acknowledged is there, and the others take over what it held.
 *
 * Errors. Each function returns a farindex_status. farindex_error_message says in words what the last error of the thread was.
 *
 * Linking. -lfarindex_c, or libfarindex_c.a with -lm -ldl -lpthread.
 */


#ifndef FARINDEX_H
#define FARINDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * What a function returns. Below FARINDEX_ERROR it is an outcome: the function did its work. From FARINDEX_ERROR on it is an
 * error, and farindex_error_message says what to do.
 */
typedef enum {
    /**
     * Done.
     */
    FARINDEX_OK = 0,
    /**
     * The key is absent. A read found nothing; a change changed nothing.
     */
    FARINDEX_ABSENT = 1,
    /**
     * The key exists already, and is unchanged.
     */
    FARINDEX_EXISTS = 2,
    /**
     * The key has another value than the expected one, and is unchanged.
     */
    FARINDEX_DIFFERS = 3,
    /**
     * The value is longer than the caller's buffer, which is unchanged; the length says how long it is.
     */
    FARINDEX_BUFFER_TOO_SMALL = 4,
    /**
     * An error that has no code of its own.
     */
    FARINDEX_ERROR = 100,
    /**
     * A pointer is null, a text is not UTF-8, or a number makes no sense.
     */
    FARINDEX_ERROR_INVALID_ARGUMENT = 101,
    /**
     * A session or an index was used by another thread than the one that opened the session. Nothing was done.
     */
    FARINDEX_ERROR_WRONG_THREAD = 102,
    /**
     * A place of a pool, a kind of index, or settings that make no sense.
     */
    FARINDEX_ERROR_CONFIG = 103,
    /**
     * The pool is full, or its catalog, or the place of a key. Nothing was changed or lost.
     */
    FARINDEX_ERROR_FULL = 104,
    /**
     * The key is longer than the index takes.
     */
    FARINDEX_ERROR_KEY_TOO_LONG = 105,
    /**
     * The value is longer than the index takes.
     */
    FARINDEX_ERROR_VALUE_TOO_LONG = 106,
    /**
     * There is no index of this name, or no pool at this place.
     */
    FARINDEX_ERROR_NOT_FOUND = 107,
    /**
     * There is an index of this name, or a pool at this place, already.
     */
    FARINDEX_ERROR_ALREADY_EXISTS = 108,
    /**
     * The index is of another kind, or its kind cannot do this.
     */
    FARINDEX_ERROR_WRONG_KIND = 109,
    /**
     * The index was dropped while it was open.
     */
    FARINDEX_ERROR_DROPPED = 110,
    /**
     * A client that is alive has held a lock for longer than two leases.
     */
    FARINDEX_ERROR_LOCKED = 111,
    /**
     * This process was silent for longer than a lease, and was evicted. Close the pool and open it again. Writes in flight may
     * have taken effect or not.
     */
    FARINDEX_ERROR_LEASE_LOST = 112,
    /**
     * As many processes have the pool open as it has client slots.
     */
    FARINDEX_ERROR_NO_CLIENT_SLOT = 113,
    /**
     * A memory node cannot be reached or did not answer in time. A write may have taken effect or not.
     */
    FARINDEX_ERROR_UNREACHABLE = 114,
    /**
     * The memory of a node could not be opened, created, mapped or written.
     */
    FARINDEX_ERROR_REGION = 115,
    /**
     * Far memory holds bytes that no client writes, or that another version has written.
     */
    FARINDEX_ERROR_CORRUPTED = 116,
    /**
     * This build lacks the fabric, or the fabric lacks what was asked for.
     */
    FARINDEX_ERROR_UNSUPPORTED = 117,
    /**
     * A defect of the library. Close what is open and report it.
     */
    FARINDEX_ERROR_INTERNAL = 118,
    /**
     * The handle is another process's, from which this one was forked. Nothing was done. Open the pool again in this process.
     */
    FARINDEX_ERROR_FORKED = 119,
} farindex_status;

/**
 * What an end of a range is.
 */
typedef enum {
    /**
     * There is no bound; the key means nothing.
     */
    FARINDEX_UNBOUNDED = 0,
    /**
     * The key belongs to the range.
     */
    FARINDEX_INCLUDED = 1,
    /**
     * The key does not belong to the range.
     */
    FARINDEX_EXCLUDED = 2,
} farindex_bound_kind;

/**
 * An open index. It belongs to the thread of its session, and keeps that session open until it is closed itself.
 *
 * Keys and values are bytes of any content: a pointer and a length. Every operation on one key takes effect at one moment, for all
 * threads and processes.
 */
typedef struct farindex_index farindex_index;

/**
 * An open pool of far memory. While it is open, this process is a client of the pool, and a thread of its own renews the lease.
 *
 * It belongs to no thread: any may use it, and several at once. farindex_pool_close ends it; sessions that are open keep the pool
 * open until they are closed too. A child of fork opens the pool itself: what it has inherited gives FARINDEX_ERROR_FORKED, and
 * closing that does nothing.
 */
typedef struct farindex_pool farindex_pool;

/**
 * What one thread works with: a connection to the pool. Each thread opens its own. Only that thread may use it, its indexes, and
 * close them; every function checks that, and returns FARINDEX_ERROR_WRONG_THREAD without doing anything else.
 */
typedef struct farindex_session farindex_session;

/**
 * Settings of a new pool. What is 0 has its default: set all to 0 first.
 */
typedef struct {
    /**
     * Bytes of each memory node. Pools in new files need it; the others have their sizes already.
     */
    uint64_t node_bytes;
    /**
     * Milliseconds for which a client may be silent before another one may evict it: 10,000.
     */
    uint64_t lease_ms;
    /**
     * Clients that may be registered at once: 64.
     */
    uint64_t client_slots;
    /**
     * Bytes of the unit in which clients allocate: one that suits the size of the node.
     */
    uint64_t chunk_bytes;
} farindex_pool_options;

/**
 * Bytes: `len` of them from `data` on. `data` may be null if `len` is 0.
 */
typedef struct {
    /**
     * The first byte.
     */
    const uint8_t *data;
    /**
     * How many.
     */
    size_t len;
} farindex_bytes;

/**
 * An end of a range. All zeros is no bound.
 */
typedef struct {
    /**
     * A farindex_bound_kind.
     */
    uint32_t kind;
    /**
     * The key.
     */
    farindex_bytes key;
} farindex_bound;

/**
 * Is called with each entry, and with the caller's own pointer. Returns true to go on, false to end. Key and value are valid during
 * the call. It may call functions of this library, with the same index too. It must return: no longjmp and no exception of C++
 * past it.
 */
typedef bool (*farindex_visitor)(void *context, farindex_bytes key, farindex_bytes value);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns what the last error of the calling thread was, in words that say what to do: UTF-8, empty if there was none. The
 * text is valid until the thread's next error.
 */
const char *farindex_error_message(void);

/**
 * Returns the version of the library, such as "0.1.0". The text is valid for ever.
 */
const char *farindex_version(void);

/**
 * Creates a pool at a place and opens it: "shm:/dev/shm/NAME" (several files separated by commas), "memory:1GiB" for one inside of
 * this process, "connect:HOST:PORT" for memory nodes over a network. `options` may be null.
 *
 * Contract:
 *
 * `url` is a string with a zero byte at its end; `options` is null or points to settings; `out` points to room for a pointer.
 */
farindex_status farindex_pool_create(const char *url,
                                     const farindex_pool_options *options,
                                     farindex_pool **out);

/**
 * Opens a pool that exists. If other clients of it have crashed and this one is alone, it first recovers what they left unfinished.
 *
 * Contract:
 *
 * `url` is a string with a zero byte at its end; `out` points to room for a pointer.
 */
farindex_status farindex_pool_open(const char *url,
                                   farindex_pool **out);

/**
 * Closes a pool; null is none. Any thread may close it. If sessions are open, the process stays a client until they are closed.
 *
 * Contract:
 *
 * `pool` was not closed yet, and no other thread uses it. It must not be used afterwards.
 */
farindex_status farindex_pool_close(farindex_pool *pool);

/**
 * Opens a session for the calling thread.
 *
 * Contract:
 *
 * `pool` is open; `out` points to room for a pointer.
 */
farindex_status farindex_session_open(const farindex_pool *pool, farindex_session **out);

/**
 * Closes a session; null is none. Its indexes may be closed before or afterwards.
 *
 * Contract:
 *
 * `session` was not closed yet. Unless the status is FARINDEX_ERROR_WRONG_THREAD or FARINDEX_ERROR_FORKED, it must not be used afterwards.
 */
farindex_status farindex_session_close(farindex_session *session);

/**
 * Creates an index and opens it. `kind` is "shard", "race", "sephash", "linear", "cuckoo", "sherman", "chime" or "dex"; null is
 * "shard". `settings` is a JSON object with the settings that differ from the kind's own; null is none.
 *
 * Contract:
 *
 * `session` is open; `name`, `kind` and `settings` are strings with a zero byte at their end, or null where that is allowed; `out`
 * points to room for a pointer.
 */
farindex_status farindex_index_create(const farindex_session *session,
                                      const char *name,
                                      const char *kind,
                                      const char *settings,
                                      farindex_index **out);

/**
 * Opens an index that exists: of this kind, or of any if `kind` is null.
 *
 * Contract:
 *
 * As for farindex_index_create.
 */
farindex_status farindex_index_open(const farindex_session *session,
                                    const char *name,
                                    const char *kind,
                                    farindex_index **out);

/**
 * Opens an index if it exists, else creates it as farindex_index_create does: what processes do that start at the same time.
 *
 * Contract:
 *
 * As for farindex_index_create.
 */
farindex_status farindex_index_open_or_create(const farindex_session *session,
                                              const char *name,
                                              const char *kind,
                                              const char *settings,
                                              farindex_index **out);

/**
 * Drops an index of the pool. A client that has it open gets FARINDEX_ERROR_DROPPED from its next operation.
 *
 * Contract:
 *
 * `session` is open; `name` is a string with a zero byte at its end.
 */
farindex_status farindex_index_drop(const farindex_session *session,
                                    const char *name);

/**
 * Closes an index; null is none. The index stays in the pool.
 *
 * Contract:
 *
 * `index` was not closed yet. Unless the status is FARINDEX_ERROR_WRONG_THREAD or FARINDEX_ERROR_FORKED, it must not be used afterwards.
 */
farindex_status farindex_index_close(farindex_index *index);

/**
 * Copies the value of a key to `buffer`, and its length to `len`. FARINDEX_ABSENT if there is no such key, and `len` is 0. If the value is
 * longer than `capacity`: FARINDEX_BUFFER_TOO_SMALL, `len` is its length, and the buffer is unchanged.
 *
 * Contract:
 *
 * `index` is open; `key` points to `key_len` bytes, `buffer` to `capacity` bytes that nobody else uses, `len` to a number. Of these the
 * pointers to no bytes may be null.
 */
farindex_status farindex_get(const farindex_index *index,
                             const uint8_t *key,
                             size_t key_len,
                             uint8_t *buffer,
                             size_t capacity,
                             size_t *len);

/**
 * Is the key present? FARINDEX_OK or FARINDEX_ABSENT.
 *
 * Contract:
 *
 * `index` is open; `key` points to `key_len` bytes.
 */
farindex_status farindex_contains(const farindex_index *index, const uint8_t *key, size_t key_len);

/**
 * Sets the value of a key, present or not.
 *
 * Contract:
 *
 * `index` is open; `key` points to `key_len` bytes and `value` to `value_len` bytes.
 */
farindex_status farindex_put(const farindex_index *index,
                             const uint8_t *key,
                             size_t key_len,
                             const uint8_t *value,
                             size_t value_len);

/**
 * Adds a key that is absent: FARINDEX_OK, or FARINDEX_EXISTS. Of all that insert a key at the same time, one gets FARINDEX_OK.
 *
 * Contract:
 *
 * `index` is open; `key` points to `key_len` bytes and `value` to `value_len` bytes.
 */
farindex_status farindex_insert(const farindex_index *index,
                                const uint8_t *key,
                                size_t key_len,
                                const uint8_t *value,
                                size_t value_len);

/**
 * Changes the value of a key that is present: FARINDEX_OK, or FARINDEX_ABSENT.
 *
 * Contract:
 *
 * `index` is open; `key` points to `key_len` bytes and `value` to `value_len` bytes.
 */
farindex_status farindex_update(const farindex_index *index,
                                const uint8_t *key,
                                size_t key_len,
                                const uint8_t *value,
                                size_t value_len);

/**
 * Removes a key: FARINDEX_OK, or FARINDEX_ABSENT.
 *
 * Contract:
 *
 * `index` is open; `key` points to `key_len` bytes.
 */
farindex_status farindex_remove(const farindex_index *index, const uint8_t *key, size_t key_len);

/**
 * Changes the value of a key from exactly `expected` to `value`: a compare-and-swap, with which clients that read, compute and write
 * lose no update of each other. FARINDEX_OK, FARINDEX_DIFFERS or FARINDEX_ABSENT.
 *
 * Contract:
 *
 * `index` is open; each pointer points to as many bytes as the length behind it says.
 */
farindex_status farindex_replace(const farindex_index *index,
                                 const uint8_t *key,
                                 size_t key_len,
                                 const uint8_t *expected,
                                 size_t expected_len,
                                 const uint8_t *value,
                                 size_t value_len);

/**
 * Removes a key if it has exactly the value `expected`: FARINDEX_OK, FARINDEX_DIFFERS or FARINDEX_ABSENT.
 *
 * Contract:
 *
 * `index` is open; each pointer points to as many bytes as the length behind it says.
 */
farindex_status farindex_remove_if(const farindex_index *index,
                                   const uint8_t *key,
                                   size_t key_len,
                                   const uint8_t *expected,
                                   size_t expected_len);

/**
 * Copies the values of many keys to an array of records of `record_size` bytes: the value of key i to the start of record i, straight
 * from the buffer that far memory was read into. Number i of `lengths` is the length of that value, or -1 if there is no such key. Records of
 * absent keys, and bytes behind a value, are unchanged. If a value is longer than a record: FARINDEX_BUFFER_TOO_SMALL, the lengths
 * say which, and its record is unchanged; the other values are there.
 *
 * Contract:
 *
 * `index` is open; `keys` points to `count` keys, `records` to count * record_size bytes and `lengths` to `count` numbers, both of
 * which nobody else uses.
 */
farindex_status farindex_get_many(const farindex_index *index,
                                  const farindex_bytes *keys,
                                  size_t count,
                                  uint8_t *records,
                                  size_t record_size,
                                  int64_t *lengths);

/**
 * Sets the values of many keys: key i to value i. Of several pairs with one key the last counts. After an error some of them may be
 * set.
 *
 * Contract:
 *
 * `index` is open; `keys` and `values` point to `count` keys and values.
 */
farindex_status farindex_put_many(const farindex_index *index,
                                  const farindex_bytes *keys,
                                  const farindex_bytes *values,
                                  size_t count);

/**
 * Removes many keys, and counts in `removed` how many of them were present; `removed` may be null.
 *
 * Contract:
 *
 * `index` is open; `keys` points to `count` keys; `removed` is null or points to a number.
 */
farindex_status farindex_remove_many(const farindex_index *index,
                                     const farindex_bytes *keys,
                                     size_t count,
                                     size_t *removed);

/**
 * Counts how many of the first keys are present: the length of the longest prefix of `keys` that is in the index. The keys are looked
 * up together. This is the question of a prefix cache, whose keys are chained hashes.
 *
 * Contract:
 *
 * `index` is open; `keys` points to `count` keys; `length` points to a number.
 */
farindex_status farindex_exists_prefix(const farindex_index *index,
                                       const farindex_bytes *keys,
                                       size_t count,
                                       size_t *length);

/**
 * Calls `visitor` with at most `limit` entries between two bounds, in ascending order of their keys. Only an ordered kind can do that:
 * others give FARINDEX_ERROR_WRONG_KIND. The entries are read before the first call: to go on, scan again from behind the last key.
 *
 * Contract:
 *
 * `index` is open; the bounds' keys point to as many bytes as they say; `visitor` does what its type asks.
 */
farindex_status farindex_scan(const farindex_index *index,
                              farindex_bound from,
                              farindex_bound to,
                              size_t limit,
                              farindex_visitor visitor,
                              void *context);

/**
 * Calls `visitor` with every entry of an index of any kind, in bounded memory; of an ordered kind in ascending order. Entries that no
 * client changes meanwhile come exactly once; changes may be seen or not.
 *
 * Contract:
 *
 * `index` is open; `visitor` does what its type asks.
 */
farindex_status farindex_for_each(const farindex_index *index,
                                  farindex_visitor visitor,
                                  void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARINDEX_H */
