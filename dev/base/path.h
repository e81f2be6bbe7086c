// Names of files and directories, as text.
#ifndef BASE_PATH_H
#define BASE_PATH_H

#include <stdbool.h>

// path_name() returns the part after the last slash. path_directory() returns the part before it as
// a new string: "." if there is no slash, "/" for "/file".
const char *path_name(const char *path);
char *path_directory(const char *path);

// Return the path of a name in a directory, or next to a file, as a new string.
char *path_in(const char *directory, const char *name);
char *path_beside(const char *file, const char *name);

// Returns whether a path has this suffix: path_ends_in("x.json", ".json").
bool path_ends_in(const char *path, const char *end);

#endif
