#include "stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t stop_signal; // a handler can reach nothing else

void stop_request(int number) {
    if (stop_signal == 0) stop_signal = number;
}

void stop_install(void) {
    // SA_RESETHAND: the second signal takes the default action.
    struct sigaction action = {.sa_handler = stop_request, .sa_flags = SA_RESETHAND | SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); // a file that grows too large is an error of write(), with a line of its own
}

int stop_requested(void) {
    return stop_signal;
}
