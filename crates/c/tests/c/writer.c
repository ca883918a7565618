/* Writes keys 0, 1, 2 ... to the index "written", and prints each number when its write was acknowledged. It ends when it is killed. */
#include <farindex.h>

#include <stdio.h>
#include <stdlib.h>

static void check(farindex_status status) {
    if (status != FARINDEX_OK) {
        fprintf(stderr, "%s\n", farindex_error_message());
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    farindex_pool *pool;
    farindex_session *session;
    farindex_index *index;
    check(farindex_pool_open(argv[1], &pool));
    check(farindex_session_open(pool, &session));
    check(farindex_index_open(session, "written", NULL, &index));
    for (uint64_t i = 0;; i++) {
        check(farindex_put(index, (const uint8_t *)&i, sizeof i, (const uint8_t *)"written", 7));
        printf("%llu\n", (unsigned long long)i);
        fflush(stdout);
    }
}
