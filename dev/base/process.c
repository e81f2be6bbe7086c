#include "process.h"
#include "error.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ_SIZE = 1 << 16, ERRORS_KEPT = 4096 };

typedef struct {
    int read, write;
} Pipe;

static Pipe pipe_open(void) {
    int ends[2];
    // Close-on-exec: the child keeps only its descriptors 0, 1 and 2.
    if (pipe2(ends, O_CLOEXEC) != 0) fail("cannot make a pipe: %s", strerror(errno));
    return (Pipe){ends[0], ends[1]};
}

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

// Runs in the child: executes the program, or writes errno to `failure`. Calls only functions that
// are safe after fork().
static _Noreturn void become(const char *const *arguments, const int ends[3], int failure,
                             pid_t parent) {
    signal(SIGPIPE, SIG_DFL); // the parent ignores it, see process_run()
    // The child must not outlive this program and continue to write. The parent may have exited
    // before prctl().
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    bool good = true;
    for (int fd = 0; fd < 3; fd++) good = good && dup2(ends[fd], fd) == fd;
    if (good) execvp(arguments[0], (char *const *)arguments);
    const int cause = errno;
    if (write(failure, &cause, sizeof(cause)) < 0) _exit(126);
    _exit(127);
}

static int wait_for(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("cannot wait for a child process: %s", strerror(errno));
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Starts the child and returns 0, or the errno of the failure.
static int start(const char *const *arguments, Pipe in, Pipe out, Pipe errors, pid_t *child) {
    Pipe failure = pipe_open(); // closed by exec; empty if the program runs
    const pid_t parent = getpid();
    *child = fork();
    if (*child == 0)
        become(arguments, (int[]){in.read, out.write, errors.write}, failure.write, parent);
    int cause = *child < 0 ? errno : 0;
    close_end(&failure.write);
    while (*child > 0 && read(failure.read, &cause, sizeof(cause)) < 0 && errno == EINTR) {
    }
    close_end(&failure.read);
    if (*child > 0 && cause != 0) wait_for(*child);
    return cause;
}

// Writes as much as the pipe takes. Closes it at the end of the input, or if the child closed its
// end. The child's exit code tells whether that was an error.
static void feed(int *fd, Text input, size_t *sent) {
    const ssize_t written = write(*fd, input.data + *sent, input.size - *sent);
    if (written > 0) *sent += (size_t)written;
    if (*sent == input.size || (written < 0 && errno != EAGAIN && errno != EINTR)) close_end(fd);
}

// Reads what is available. Closes the pipe at end of file.
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

// Writes and reads concurrently, so that neither program waits for the other with a full pipe.
static void converse(int in, int out, int errors, Text input, ProcessResult *result) {
    size_t sent = 0;
    fcntl(in, F_SETFL, O_NONBLOCK);
    if (input.size == 0) close_end(&in);
    while (out >= 0 || errors >= 0) {
        // poll() ignores an fd of -1.
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
    // A child that exits early must not end this program: a write to it then fails with EPIPE.
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
