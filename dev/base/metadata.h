// Rows of name and value: a checkpoint's metadata, the table shown at the start of a run.
#ifndef BASE_METADATA_H
#define BASE_METADATA_H

typedef struct {
    char *key, *value;
} Metadata;

// Appends a row; takes over `value`, a fresh string.
void metadata_add(Metadata **rows, int *count, const char *key, char *value);
// Gives the row of that name another value, likewise, or appends one.
void metadata_set(Metadata **rows, int *count, const char *key, char *value);
void metadata_free(Metadata *rows, int count);

#endif
