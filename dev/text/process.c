#include "process.h"
#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { READ_SIZE = 1 << 16, ERRORS_KEPT = 4096 };

typedef struct {
    int read, write;
} Pipe;

static Pipe pipe_open(void) {
    int ends[2];
    // Close-on-exec: the child keeps only what it is given as 0, 1 and 2.
    if (pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe: %s", strerror(errno));
    return (Pipe){ends[0], ends[1]};
}

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

// Starts the child and returns 0, or the errno of the failure.
static int start(const char *const *arguments, Pipe in, Pipe out, Pipe errors, pid_t *child) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE); // ignored here, see feed()
    if (posix_spawn_file_actions_init(&actions) != 0 || posix_spawnattr_init(&attributes) != 0 ||
        posix_spawn_file_actions_adddup2(&actions, in.read, STDIN_FILENO) != 0 ||
        posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO) != 0 ||
        posix_spawn_file_actions_adddup2(&actions, errors.write, STDERR_FILENO) != 0 ||
        posix_spawnattr_setsigdefault(&attributes, &defaults) != 0 ||
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF) != 0)
        fail("no memory to start %s", arguments[0]);
    const int error =
        posix_spawnp(child, arguments[0], &actions, &attributes, (char *const *)arguments, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

// Writes what the pipe takes; closes it at the end of the input, or when the child closed its end: whether
// that was an error its exit code will say.
static void feed(int *fd, Text input, size_t *sent) {
    const ssize_t written = write(*fd, input.data + *sent, input.size - *sent);
    if (written > 0) *sent += (size_t)written;
    if (*sent == input.size || (written < 0 && errno != EAGAIN && errno != EINTR)) close_end(fd);
}

// Reads what is there; closes the pipe at its end.
static void drain(int *fd, Bytes *bytes) {
    const ssize_t got = read(*fd, bytes_reserve(bytes, READ_SIZE), READ_SIZE);
    if (got > 0) bytes->size += (size_t)got;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) close_end(fd);
}

static void keep_end(Bytes *bytes, size_t size) {
    if (bytes->size <= size) return;
    memmove(bytes->data, bytes->data + bytes->size - size, size);
    bytes->size = size;
}

// Feeds and reads side by side, so that neither program waits for the other with its pipe full.
static void converse(int in, int out, int errors, Text input, ProcessResult *result) {
    size_t sent = 0;
    fcntl(in, F_SETFL, O_NONBLOCK);
    if (input.size == 0) close_end(&in);
    while (out >= 0 || errors >= 0) {
        // poll() passes over an fd of -1.
        struct pollfd ends[3] = {{in, POLLOUT, 0}, {out, POLLIN, 0}, {errors, POLLIN, 0}};
        if (poll(ends, 3, -1) < 0) {
            if (errno == EINTR) continue;
            fail("cannot wait for a child process: %s", strerror(errno));
        }
        if (ends[0].revents) feed(&in, input, &sent);
        if (ends[1].revents) drain(&out, &result->output);
        if (ends[2].revents) drain(&errors, &result->errors);
        keep_end(&result->errors, ERRORS_KEPT);
    }
    close_end(&in);
}

static int wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("cannot wait for a child process: %s", strerror(errno));
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

ProcessResult process_run(const char *const *arguments, Text input) {
    ProcessResult result = {0};
    Pipe in = pipe_open(), out = pipe_open(), errors = pipe_open();
    pid_t child = 0;
    result.start_error = start(arguments, in, out, errors, &child);
    close_end(&in.read);
    close_end(&out.write);
    close_end(&errors.write);
    if (result.start_error != 0) {
        close_end(&in.write);
        close_end(&out.read);
        close_end(&errors.read);
        return result;
    }
    // A child that ends early must not end this program: its write then fails with EPIPE.
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    converse(in.write, out.read, errors.read, input, &result);
    sigaction(SIGPIPE, &before, NULL);
    result.exit_code = wait_for(child);
    return result;
}

void process_result_free(ProcessResult *result) {
    bytes_free(&result->output);
    bytes_free(&result->errors);
}
