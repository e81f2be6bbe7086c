#include "metadata.h"

#include "error.h"
#include "memory.h"
#include <stdlib.h>
#include <string.h>

void metadata_add(Metadata **rows, int *count, const char *key, char *value) {
    Metadata *longer = realloc(*rows, ((size_t)*count + 1) * sizeof(Metadata));
    if (!longer) fail("out of memory for %d rows of metadata", *count + 1);
    longer[(*count)++] = (Metadata){copy_string(key), value};
    *rows = longer;
}

void metadata_set(Metadata **rows, int *count, const char *key, char *value) {
    for (int i = 0; i < *count; i++) {
        if (strcmp((*rows)[i].key, key) != 0) continue;
        free((*rows)[i].value);
        (*rows)[i].value = value;
        return;
    }
    metadata_add(rows, count, key, value);
}

void metadata_free(Metadata *rows, int count) {
    for (int i = 0; i < count; i++) {
        free(rows[i].key);
        free(rows[i].value);
    }
    free(rows);
}
