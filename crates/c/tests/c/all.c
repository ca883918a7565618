/* Uses every function of the interface, with the pool at the place that the first argument names. Prints "ok" at the end. */
#define _POSIX_C_SOURCE 200809L
#include <farindex.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                             \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            printf("line %d: %s: %s\n", __LINE__, #condition, farindex_error_message());              \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)
#define OK(call) CHECK((call) == FARINDEX_OK)

static const uint8_t *text(const char *text) { return (const uint8_t *)text; }
static farindex_bytes bytes(const char *string) {
    farindex_bytes bytes = {text(string), strlen(string)};
    return bytes;
}

static void one_key(const farindex_index *index) {
    char buffer[8] = "........";
    size_t length = 99;
    CHECK(farindex_get(index, text("far"), 3, (uint8_t *)buffer, sizeof buffer, &length) == FARINDEX_ABSENT);
    CHECK(length == 0);
    CHECK(farindex_contains(index, text("far"), 3) == FARINDEX_ABSENT);
    CHECK(farindex_update(index, text("far"), 3, text("x"), 1) == FARINDEX_ABSENT);
    CHECK(farindex_remove(index, text("far"), 3) == FARINDEX_ABSENT);
    CHECK(farindex_replace(index, text("far"), 3, NULL, 0, text("x"), 1) == FARINDEX_ABSENT);
    CHECK(farindex_remove_if(index, text("far"), 3, NULL, 0) == FARINDEX_ABSENT);
    OK(farindex_insert(index, text("far"), 3, text("memory"), 6));
    CHECK(farindex_insert(index, text("far"), 3, text("away"), 4) == FARINDEX_EXISTS);
    OK(farindex_get(index, text("far"), 3, (uint8_t *)buffer, sizeof buffer, &length));
    CHECK(length == 6 && memcmp(buffer, "memory..", 8) == 0);
    CHECK(farindex_get(index, text("far"), 3, (uint8_t *)buffer, 5, &length) == FARINDEX_BUFFER_TOO_SMALL);
    CHECK(length == 6 && memcmp(buffer, "memory..", 8) == 0);
    CHECK(farindex_get(index, text("far"), 3, NULL, 0, &length) == FARINDEX_BUFFER_TOO_SMALL && length == 6);
    OK(farindex_update(index, text("far"), 3, text("off"), 3));
    CHECK(farindex_replace(index, text("far"), 3, text("of"), 2, text("x"), 1) == FARINDEX_DIFFERS);
    OK(farindex_replace(index, text("far"), 3, text("off"), 3, NULL, 0));
    OK(farindex_get(index, text("far"), 3, NULL, 0, &length));
    CHECK(length == 0);
    CHECK(farindex_remove_if(index, text("far"), 3, text("off"), 3) == FARINDEX_DIFFERS);
    OK(farindex_remove_if(index, text("far"), 3, NULL, 0));
    OK(farindex_put(index, text(""), 0, text("\0binary"), 7));
    OK(farindex_contains(index, NULL, 0));
    OK(farindex_remove(index, NULL, 0));
}

enum { MANY = 1000, RECORD = 16 };

static void many_keys(const farindex_index *index) {
    char (*names)[RECORD] = calloc(MANY, RECORD);
    farindex_bytes *keys = calloc(MANY, sizeof *keys);
    uint8_t *records = malloc(MANY * RECORD);
    int64_t *lengths = malloc(MANY * sizeof *lengths);
    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], RECORD, "key-%04d", i);
        keys[i] = bytes(names[i]);
    }
    size_t count = 99;
    OK(farindex_exists_prefix(index, keys, MANY, &count));
    CHECK(count == 0);
    OK(farindex_put_many(index, keys, keys, MANY));
    OK(farindex_remove(index, keys[700].data, keys[700].len));
    OK(farindex_exists_prefix(index, keys, MANY, &count));
    CHECK(count == 700);
    memset(records, '.', MANY * RECORD);
    OK(farindex_get_many(index, keys, MANY, records, RECORD, lengths));
    for (int i = 0; i < MANY; i++) {
        const char *expected = i == 700 ? "................" : names[i];
        CHECK(lengths[i] == (i == 700 ? -1 : 8));
        CHECK(memcmp(records + i * RECORD, expected, 8) == 0);
        CHECK(memcmp(records + i * RECORD + 8, "........", 8) == 0);
    }
    memset(records, '.', MANY * RECORD);
    OK(farindex_put(index, keys[3].data, keys[3].len, text("1234567"), 7));
    CHECK(farindex_get_many(index, keys, MANY, records, 7, lengths) == FARINDEX_BUFFER_TOO_SMALL);
    CHECK(lengths[0] == 8 && lengths[3] == 7 && lengths[700] == -1);
    CHECK(memcmp(records, ".....................1234567.......", 35) == 0);
    /* Of two values of one key the last counts. */
    farindex_bytes twice[2] = {keys[5], keys[5]}, values[2] = {bytes("first"), bytes("last")};
    OK(farindex_put_many(index, twice, values, 2));
    OK(farindex_get_many(index, twice, 2, records, RECORD, lengths));
    CHECK(lengths[1] == 4 && memcmp(records + RECORD, "last", 4) == 0);
    OK(farindex_remove_many(index, keys, MANY, &count));
    CHECK(count == MANY - 1);
    OK(farindex_remove_many(index, keys, MANY, NULL));
    OK(farindex_get_many(index, NULL, 0, NULL, RECORD, NULL));
    OK(farindex_put_many(index, NULL, NULL, 0));
    free(names), free(keys), free(records), free(lengths);
}

struct seen {
    const farindex_index *index;
    size_t count, most;
    char last[RECORD];
};

static bool see(void *context, farindex_bytes key, farindex_bytes value) {
    struct seen *seen = context;
    uint8_t buffer[RECORD];
    size_t length;
    /* The index may be used meanwhile. */
    OK(farindex_get(seen->index, key.data, key.len, buffer, sizeof buffer, &length));
    CHECK(length == value.len && memcmp(buffer, value.data, length) == 0);
    memcpy(seen->last, key.data, key.len);
    seen->last[key.len] = 0;
    return ++seen->count < seen->most;
}

static void scans(const farindex_index *tree, const farindex_index *table) {
    char name[RECORD];
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "%02d", i);
        OK(farindex_put(tree, text(name), 2, text(name), 2));
        OK(farindex_put(table, text(name), 2, text(name), 2));
    }
    farindex_bound none = {FARINDEX_UNBOUNDED, {NULL, 0}};
    farindex_bound from = {FARINDEX_EXCLUDED, bytes("10")}, to = {FARINDEX_INCLUDED, bytes("20")};
    struct seen seen = {tree, 0, 1000, ""};
    OK(farindex_scan(tree, from, to, 1000, see, &seen));
    CHECK(seen.count == 10 && strcmp(seen.last, "20") == 0);
    seen = (struct seen){tree, 0, 1000, ""};
    OK(farindex_scan(tree, none, to, 3, see, &seen));
    CHECK(seen.count == 3 && strcmp(seen.last, "02") == 0);
    seen = (struct seen){tree, 0, 5, ""};
    OK(farindex_scan(tree, from, none, 1000, see, &seen));
    CHECK(seen.count == 5 && strcmp(seen.last, "15") == 0);
    seen = (struct seen){tree, 0, 1000, ""};
    OK(farindex_for_each(tree, see, &seen));
    CHECK(seen.count == 100 && strcmp(seen.last, "99") == 0);
    seen = (struct seen){table, 0, 1000, ""};
    OK(farindex_for_each(table, see, &seen));
    CHECK(seen.count == 100);
    CHECK(farindex_scan(table, none, none, 10, see, &seen) == FARINDEX_ERROR_WRONG_KIND);
    CHECK(strstr(farindex_error_message(), "ordered kind"));
    CHECK(farindex_scan(tree, none, none, 10, NULL, NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_for_each(tree, NULL, NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    from.kind = 7;
    CHECK(farindex_scan(tree, from, none, 10, see, &seen) == FARINDEX_ERROR_INVALID_ARGUMENT);
}

static void mistakes(farindex_pool *pool, farindex_session *session, farindex_index *index, const char *url) {
    size_t length = 0;
    farindex_pool *no_pool = pool;
    farindex_index *no_index = index;
    CHECK(farindex_pool_open(NULL, &no_pool) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(farindex_error_message(), "url is null"));
    CHECK(farindex_pool_open("\xff", &no_pool) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_pool_open("nonsense", NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_pool_open("nonsense", &no_pool) == FARINDEX_ERROR_CONFIG && no_pool == NULL);
    CHECK(farindex_pool_open("shm:/dev/shm/farindex-no-such-pool", &no_pool) == FARINDEX_ERROR_REGION);
    CHECK(farindex_pool_create(url, NULL, &no_pool) == FARINDEX_ERROR_CONFIG);
    farindex_pool_options options = {.node_bytes = 64 << 20};
    farindex_status status = farindex_pool_create(url, &options, &no_pool);
    CHECK(status == FARINDEX_ERROR_ALREADY_EXISTS || status == FARINDEX_ERROR_REGION);
    CHECK(farindex_session_open(NULL, &session) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_index_open(session, "none", NULL, &no_index) == FARINDEX_ERROR_INVALID_ARGUMENT && session == NULL);
    OK(farindex_session_open(pool, &session));
    CHECK(farindex_index_open(session, "none", NULL, &no_index) == FARINDEX_ERROR_NOT_FOUND && no_index == NULL);
    CHECK(farindex_index_create(session, "table", NULL, NULL, &no_index) == FARINDEX_ERROR_ALREADY_EXISTS);
    CHECK(farindex_index_open(session, "tree", "shard", &no_index) == FARINDEX_ERROR_WRONG_KIND);
    CHECK(farindex_index_create(session, "new", "bush", NULL, &no_index) == FARINDEX_ERROR_CONFIG);
    CHECK(strstr(farindex_error_message(), "there are shard"));
    CHECK(farindex_index_create(session, "new", NULL, "[]", &no_index) == FARINDEX_ERROR_CONFIG);
    CHECK(farindex_index_create(session, "new", NULL, "{\"depth\": 1}", &no_index) == FARINDEX_ERROR_CONFIG);
    CHECK(farindex_index_create(session, "new", "linear", "{\"width\": \"x\"}", &no_index) == FARINDEX_ERROR_CONFIG);
    CHECK(farindex_index_drop(session, "none") == FARINDEX_ERROR_NOT_FOUND);
    OK(farindex_session_close(session));

    CHECK(farindex_get(NULL, text("a"), 1, NULL, 0, &length) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_get(index, NULL, 1, NULL, 0, &length) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_get(index, text("a"), 1, NULL, 1, &length) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_get(index, text("a"), 1, NULL, 0, NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_put(index, text("a"), SIZE_MAX, NULL, 0) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_get_many(index, NULL, 1, NULL, 0, NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_get_many(index, NULL, 2, NULL, SIZE_MAX, NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    CHECK(farindex_exists_prefix(index, NULL, 0, NULL) == FARINDEX_ERROR_INVALID_ARGUMENT);
    uint8_t *huge = calloc(1, 17 << 20);
    CHECK(farindex_put(index, huge, 17 << 20, NULL, 0) == FARINDEX_ERROR_KEY_TOO_LONG);
    CHECK(farindex_put(index, text("a"), 1, huge, 17 << 20) == FARINDEX_ERROR_VALUE_TOO_LONG);
    CHECK(strstr(farindex_error_message(), "limit"));
    free(huge);
}

struct thread {
    farindex_pool *pool;
    farindex_session *session;
    farindex_index *index;
    int number;
};

static void *other_thread(void *context) {
    struct thread *thread = context;
    char value[RECORD], seen[RECORD];
    size_t length;
    /* Nothing of the other thread's. */
    CHECK(strlen(farindex_error_message()) == 0);
    CHECK(farindex_put(thread->index, text("a"), 1, NULL, 0) == FARINDEX_ERROR_WRONG_THREAD);
    CHECK(strstr(farindex_error_message(), "one for each thread"));
    CHECK(farindex_index_close(thread->index) == FARINDEX_ERROR_WRONG_THREAD);
    CHECK(farindex_session_close(thread->session) == FARINDEX_ERROR_WRONG_THREAD);
    /* Its own. */
    farindex_session *session;
    farindex_index *index;
    OK(farindex_session_open(thread->pool, &session));
    OK(farindex_index_open(session, "table", NULL, &index));
    for (int i = 0; i < 500;) {
        OK(farindex_get(index, text("count"), 5, (uint8_t *)seen, sizeof seen - 1, &length));
        seen[length] = 0;
        int size = snprintf(value, sizeof value, "%d", atoi(seen) + 1);
        farindex_status status =
            farindex_replace(index, text("count"), 5, (uint8_t *)seen, length, (uint8_t *)value, (size_t)size);
        CHECK(status == FARINDEX_OK || status == FARINDEX_DIFFERS);
        i += status == FARINDEX_OK;
    }
    OK(farindex_session_close(session));
    OK(farindex_index_close(index));
    return NULL;
}

static void threads(farindex_pool *pool, farindex_session *session, farindex_index *index) {
    pthread_t running[4];
    struct thread contexts[4];
    char seen[RECORD] = "";
    size_t length;
    OK(farindex_put(index, text("count"), 5, text("0"), 1));
    for (int i = 0; i < 4; i++) {
        contexts[i] = (struct thread){pool, session, index, i};
        CHECK(pthread_create(&running[i], NULL, other_thread, &contexts[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(running[i], NULL) == 0);
    OK(farindex_get(index, text("count"), 5, (uint8_t *)seen, sizeof seen - 1, &length));
    CHECK(strcmp(seen, "2000") == 0);
}

/* A child of fork is refused everything, and closes nothing of its parent. */
static void forks(farindex_pool *pool, farindex_session *session, farindex_index *index, const char *url) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        farindex_session *other;
        farindex_pool *own;
        size_t length;
        CHECK(farindex_put(index, text("count"), 5, NULL, 0) == FARINDEX_ERROR_FORKED);
        CHECK(strstr(farindex_error_message(), "open the pool again"));
        CHECK(farindex_exists_prefix(index, NULL, 0, &length) == FARINDEX_ERROR_FORKED);
        CHECK(farindex_index_drop(session, "table") == FARINDEX_ERROR_FORKED);
        CHECK(farindex_session_open(pool, &other) == FARINDEX_ERROR_FORKED && other == NULL);
        CHECK(farindex_index_close(index) == FARINDEX_ERROR_FORKED);
        CHECK(farindex_session_close(session) == FARINDEX_ERROR_FORKED);
        OK(farindex_pool_close(pool));
        OK(farindex_pool_open(url, &own));
        OK(farindex_session_open(own, &session));
        OK(farindex_index_open(session, "table", NULL, &index));
        OK(farindex_put(index, text("child"), 5, text("was here"), 8));
        OK(farindex_index_close(index));
        OK(farindex_session_close(session));
        OK(farindex_pool_close(own));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(farindex_contains(index, text("child"), 5));
}

static void full(void) {
    farindex_pool *pool;
    farindex_session *session;
    farindex_index *index;
    OK(farindex_pool_create("memory:8MiB", NULL, &pool));
    OK(farindex_session_open(pool, &session));
    OK(farindex_index_open_or_create(session, "small", NULL, NULL, &index));
    uint8_t *value = calloc(1, 100000);
    farindex_status status = FARINDEX_OK;
    int i = 0;
    for (; i < 1000 && status == FARINDEX_OK; i++)
        status = farindex_put(index, (uint8_t *)&i, sizeof i, value, 100000);
    CHECK(status == FARINDEX_ERROR_FULL && i > 10);
    free(value);
    i = 0;
    OK(farindex_contains(index, (uint8_t *)&i, sizeof i));
    OK(farindex_index_close(index));
    OK(farindex_session_close(session));
    OK(farindex_pool_close(pool));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    CHECK(strcmp(farindex_version(), "0.1.0") == 0);
    farindex_pool *pool, *second;
    farindex_session *session;
    farindex_index *table, *tree, *linear;
    farindex_pool_options options = {.node_bytes = 64 << 20, .lease_ms = 2000, .client_slots = 8, .chunk_bytes = 65536};
    OK(farindex_pool_create(argv[1], &options, &pool));
    OK(farindex_pool_open(argv[1], &second));
    OK(farindex_pool_close(second));
    OK(farindex_session_open(pool, &session));
    OK(farindex_index_create(session, "table", NULL, NULL, &table));
    OK(farindex_index_create(session, "tree", "sherman", "{\"leaf_span\": 32}", &tree));
    OK(farindex_index_open_or_create(session, "linear", "linear", NULL, &linear));
    one_key(table);
    one_key(tree);
    one_key(linear);
    many_keys(table);
    many_keys(tree);
    scans(tree, table);
    mistakes(pool, session, table, argv[1]);
    threads(pool, session, table);
    forks(pool, session, table, argv[1]);
    full();
    OK(farindex_index_drop(session, "linear"));
    farindex_status status = FARINDEX_OK;
    for (int i = 0; i < 1000 && status == FARINDEX_OK; i++)
        status = farindex_put(linear, (uint8_t *)&i, sizeof i, NULL, 0);
    CHECK(status == FARINDEX_ERROR_DROPPED);
    OK(farindex_index_close(linear));
    OK(farindex_index_close(NULL));
    OK(farindex_session_close(NULL));
    OK(farindex_pool_close(NULL));
    /* In an order that is not the natural one. */
    OK(farindex_pool_close(pool));
    OK(farindex_index_close(tree));
    OK(farindex_session_close(session));
    OK(farindex_contains(table, text("count"), 5));
    OK(farindex_index_close(table));
    puts("ok");
    return 0;
}
