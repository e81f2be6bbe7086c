#include "task.h"
#include "error.h"

int64_t task_length(const TaskSetup *setup, OptionName option) {
    const int64_t length = options_integer(setup->options, option);
    const bool given = options_given(setup->options, option);
    const bool known = given || setup->resumed || setup->training;
    if (setup->positions == 0 || (known && length <= setup->positions)) return length;
    if (given)
        fail("--%s %lld: the model has %lld positions", options_name(option), (long long)length,
             (long long)setup->positions);
    return setup->positions;
}
