#include "stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t stop_signal; // a handler may access nothing else

void stop_request(int number) {
    if (stop_signal == 0) stop_signal = number;
}

static void handle_signals(int flags) {
    // SA_RESETHAND: the second signal takes the default action.
    struct sigaction action = {.sa_handler = stop_request, .sa_flags = SA_RESETHAND | flags},
                     before;
    sigemptyset(&action.sa_mask);
    // Batch systems send these some time before they kill a job.
    static const int ends[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) sigaction(ends[i], &action, NULL);
    struct sigaction again = action; // the soft limit on CPU time sends it once per second
    again.sa_flags = flags;
    sigaction(SIGXCPU, &again, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
}

void stop_install(void) {
    handle_signals(SA_RESTART);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ,
           SIG_IGN); // write() then fails on too large a file, with its own message
}

void stop_interrupts(bool interrupts) {
    if (stop_signal == 0)
        handle_signals(interrupts ? 0 : SA_RESTART); // else the next signal ends the program
}

int stop_requested(void) {
    return stop_signal;
}
