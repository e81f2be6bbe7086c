// Rows of keys and values: a checkpoint's metadata, the table shown at the start of a run.
#ifndef BASE_METADATA_H
#define BASE_METADATA_H

typedef struct {
    char *key, *value;
} Metadata;

// Appends a row. Takes ownership of `value`, an allocated string.
void metadata_add(Metadata **rows, int *count, const char *key, char *value);
// Replaces the value of the row with that key, or appends a row. Takes ownership of `value`.
void metadata_set(Metadata **rows, int *count, const char *key, char *value);
void metadata_free(Metadata *rows, int count);

#endif
