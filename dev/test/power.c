// Replays the beginning of a journal of record.c and leaves on the disk what may remain if the
// machine loses power there. power.sh builds and uses it:
//
//   power JOURNAL EVENTS MODE DIR   replays that many events over DIR, whose contents are on disk
//   power JOURNAL                   prints the number of events
//
//   MODE   lost    only synced names and bytes: a name by fsync() of its directory, bytes by
//                  fsync() of the file
//          names   all names, but unsynced bytes are missing: files are short or empty
//          zeros   the same, with zeros instead of the unsynced bytes
//          torn    all names, and the first half of the unsynced bytes
//          data    all bytes, but only synced names
//          last    all bytes, and only the last one of the unsynced changes of names
//
// Prints the name of the newest weights that were complete on the disk, if any.
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES = 512, FILES = 4096, PATH_SIZE = 512 };

typedef struct {
    char *bytes;
    size_t size, synced_size;
    char *synced; // bytes at the last fsync(); NULL: none
} File;

typedef struct {
    char path[PATH_SIZE], target[PATH_SIZE]; // target of a symbolic link
    int file;                                // its number; 0: a link, -1: a directory
} Entry;

typedef struct {
    Entry entries[ENTRIES];
    int count;
} Names;

static File files[FILES];
static int file_count = 1;
static int opened[FILES];              // the file of each open()
static Names now, synced, before_last; // current, on the disk, before the last change

static _Noreturn void stop(const char *what, const char *detail) {
    fprintf(stderr, "power: %s: %s\n", what, detail);
    exit(1);
}

static Entry *find(Names *names, const char *path) {
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->entries[i].path, path) == 0) return &names->entries[i];
    return NULL;
}

static void drop(Names *names, const char *path) {
    Entry *entry = find(names, path);
    if (entry) *entry = names->entries[--names->count];
}

static Entry *put(Names *names, const char *path, int file) {
    drop(names, path);
    if (names->count == ENTRIES) stop("too many files", path);
    Entry *entry = &names->entries[names->count++];
    *entry = (Entry){.file = file};
    snprintf(entry->path, PATH_SIZE, "%s", path);
    return entry;
}

static void parent_of(const char *path, char parent[PATH_SIZE]) {
    snprintf(parent, PATH_SIZE, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash)
        *slash = '\0';
    else
        snprintf(parent, PATH_SIZE, ".");
}

static void set_bytes(char **bytes, const char *from, size_t size) {
    char *copy = malloc(size + 1);
    if (!copy) stop("no memory", "");
    memcpy(copy, from, size);
    free(*bytes);
    *bytes = copy;
}

static void sync_file(File *file) {
    set_bytes(&file->synced, file->bytes ? file->bytes : "", file->size);
    file->synced_size = file->size;
}

static void sync_directory(const char *path) {
    char parent[PATH_SIZE];
    for (int i = synced.count - 1; i >= 0; i--) {
        parent_of(synced.entries[i].path, parent);
        if (strcmp(parent, path) == 0) synced.entries[i] = synced.entries[--synced.count];
    }
    for (int i = 0; i < now.count; i++) {
        parent_of(now.entries[i].path, parent);
        if (strcmp(parent, path) == 0) synced.entries[synced.count++] = now.entries[i];
    }
}

static void add(File *file, const char *bytes, size_t size) {
    char *longer = realloc(file->bytes, file->size + size + 1);
    if (!longer) stop("no memory", "");
    file->bytes = longer;
    memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

// Loads the initial contents of the directory, which are on the disk.
static void load(const char *path) {
    DIR *directory = opendir(path);
    if (!directory) return;
    put(&now, path, -1);
    for (struct dirent *item; (item = readdir(directory));) {
        char child[PATH_SIZE], bytes[1 << 16];
        struct stat status;
        if (snprintf(child, sizeof(child), "%s/%s", path, item->d_name) >= PATH_SIZE) abort();
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        if (lstat(child, &status) != 0) stop("cannot be read", child);
        if (S_ISDIR(status.st_mode)) {
            load(child);
        } else if (S_ISLNK(status.st_mode)) {
            const ssize_t length = readlink(child, bytes, PATH_SIZE - 1);
            snprintf(put(&now, child, 0)->target, PATH_SIZE, "%.*s", (int)length, bytes);
        } else {
            FILE *stream = fopen(child, "rb");
            File *file = &files[put(&now, child, file_count++)->file];
            for (size_t got; stream && (got = fread(bytes, 1, sizeof(bytes), stream)) > 0;)
                add(file, bytes, got);
            if (stream) fclose(stream);
            sync_file(file);
        }
    }
    closedir(directory);
}

// ---- events -----------------------------------------------------------------

// Replays one event of the journal, or only counts it; returns false at the end.
static bool replay(FILE *journal, bool counts) {
    char line[3 * PATH_SIZE], a[PATH_SIZE] = "", b[PATH_SIZE] = "";
    int number = 0;
    size_t size = 0;
    if (!fgets(line, sizeof(line), journal)) return false;
    const Names before = now;
    if (sscanf(line, "write %d %zu", &number, &size) == 2) {
        char *bytes = malloc(size + 1);
        if (!bytes || fread(bytes, 1, size, journal) != size) stop("cut off", line);
        if (!counts) add(&files[opened[number]], bytes, size);
        free(bytes);
    } else if (counts) {
        return true;
    } else if (sscanf(line, "open %d %511s", &number, a) == 2) {
        const Entry *entry = find(&now, a);
        opened[number] = entry ? entry->file : put(&now, a, file_count++)->file;
    } else if (sscanf(line, "trunc %d %zu", &number, &size) == 2) {
        files[opened[number]].size = size;
    } else if (sscanf(line, "sync %d", &number) == 1) {
        sync_file(&files[opened[number]]);
    } else if (sscanf(line, "syncdir %511s", a) == 1) {
        sync_directory(a);
    } else if (sscanf(line, "mkdir %511s", a) == 1) {
        put(&now, a, -1);
    } else if (sscanf(line, "rename %511s %511s", a, b) == 2) {
        if (!find(&now, a)) stop("no such file", a);
        Entry moved = *find(&now, a);
        drop(&now, a);
        snprintf(put(&now, b, moved.file)->target, PATH_SIZE, "%s", moved.target);
    } else if (sscanf(line, "unlink %511s", a) == 1 || sscanf(line, "rmdir %511s", a) == 1) {
        drop(&now, a);
    } else if (sscanf(line, "symlink %511s %511s", a, b) == 2) {
        snprintf(put(&now, a, 0)->target, PATH_SIZE, "%s", b);
    } else {
        stop("not understood", line);
    }
    if (memcmp(&before, &now, sizeof(now)) != 0) before_last = before;
    return true;
}

// ---- result on the disk -----------------------------------------------------

static void write_file(const char *path, const File *file, const char *mode) {
    const bool all = strcmp(mode, "data") == 0 || strcmp(mode, "last") == 0;
    size_t size = all ? file->size : file->synced_size, zeros = 0;
    const char *bytes = all || !file->synced ? file->bytes : file->synced;
    if (strcmp(mode, "torn") == 0 && file->size > size) {
        bytes = file->bytes;
        size += (file->size - size) / 2;
    }
    if (strcmp(mode, "zeros") == 0 && file->size > size) zeros = file->size - size;
    FILE *stream = fopen(path, "wb");
    if (!stream || (size && fwrite(bytes, 1, size, stream) != size)) stop("cannot write", path);
    while (zeros-- > 0) fputc(0, stream);
    if (fclose(stream) != 0) stop("cannot write", path);
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const Entry *)a)->path, ((const Entry *)b)->path);
}

static bool parent_exists(Names *names, const char *path, const char *root) {
    char parent[PATH_SIZE];
    parent_of(path, parent);
    return strcmp(path, root) == 0 || (find(names, parent) && parent_exists(names, parent, root));
}

static void write_all(Names *names, const char *mode, const char *root) {
    qsort(names->entries, (size_t)names->count, sizeof(Entry), by_path);
    for (int i = 0; i < names->count; i++) {
        const Entry *entry = &names->entries[i];
        if (!parent_exists(names, entry->path, root)) continue;
        if (entry->file > 0)
            write_file(entry->path, &files[entry->file], mode);
        else if (entry->file < 0 ? mkdir(entry->path, 0777) : symlink(entry->target, entry->path))
            stop("cannot be made", entry->path);
    }
}

// Applies only the last change to the names on the disk.
static void apply_last(void) {
    for (int i = 0; i < before_last.count; i++)
        if (!find(&now, before_last.entries[i].path)) drop(&synced, before_last.entries[i].path);
    for (int i = 0; i < now.count; i++) {
        const Entry *entry = &now.entries[i], *before = find(&before_last, entry->path);
        if (!before || before->file != entry->file) *put(&synced, entry->path, 0) = *entry;
    }
}

static void print_newest(const char *root) {
    char newest[PATH_SIZE] = "";
    for (int i = 0; i < synced.count; i++) {
        const char *path = synced.entries[i].path, *name = path + strlen(root) + 1;
        long long step;
        char rest[PATH_SIZE];
        if (strlen(path) > strlen(root) && sscanf(name, "step_%lld.%511s", &step, rest) == 2 &&
            strcmp(rest, "safetensors") == 0 && strcmp(path, newest) > 0)
            snprintf(newest, sizeof(newest), "%s", path);
    }
    if (*newest) puts(newest);
}

int main(int argc, char **argv) {
    FILE *journal = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!journal || (argc != 2 && argc != 5)) stop("usage", "JOURNAL [EVENTS MODE DIR]");
    if (argc == 2) {
        int events = 0;
        while (replay(journal, true)) events++;
        printf("%d\n", events);
        return 0;
    }
    const char *mode = argv[3], *root = argv[4];
    load(root);
    synced = now;
    for (long left = strtol(argv[2], NULL, 10); left > 0 && replay(journal, false); left--)
        continue;
    print_newest(root);
    char *command = malloc(strlen(root) + 16);
    if (!command) stop("no memory", "");
    sprintf(command, "rm -rf '%s'", root);
    if (system(command) != 0) stop("cannot be removed", root);
    free(command);
    if (strcmp(mode, "last") == 0) apply_last();
    const bool names =
        strcmp(mode, "names") == 0 || strcmp(mode, "torn") == 0 || strcmp(mode, "zeros") == 0;
    write_all(names ? &now : &synced, mode, root);
    fclose(journal);
    return 0;
}
