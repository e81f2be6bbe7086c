// The names of all options of all programs. Table rows and lookups use the identifier
// (OPT_VAL_EVERY is "val-every"), so that a name that does not exist fails to compile.
#ifndef BASE_OPTION_NAMES_H
#define BASE_OPTION_NAMES_H

// clang-format off
#define OPTION_NAMES(X) \
    X(ACCUMULATE, "accumulate") X(ACTIVATION, "activation") X(ALPHA, "alpha") \
    X(ATTENTION, "attention") X(ATTENTION_DROPOUT, "attention-dropout") X(AUDIT, "audit") \
    X(AVERAGE, "average") X(BATCH, "batch") X(BATCH_TOKENS, "batch-tokens") X(BEAM, "beam") \
    X(BETA1, "beta1") X(BETA2, "beta2") X(BEYOND, "beyond") X(BINARY, "binary") \
    X(CHANNELS, "channels") X(CLIP, "clip") X(CONFIG, "config") \
    X(COSINE_POWER, "cosine-power") X(DECODER_LAYERS, "decoder-layers") \
    X(DROPOUT, "dropout") X(ENCODER_LAYERS, "encoder-layers") X(EPOCHS, "epochs") X(EPS, "eps") \
    X(EVAL, "eval") X(EVAL_POSITIONS, "eval-positions") X(FFN, "ffn") X(FFN_SIZE, "ffn-size") \
    X(FILL, "fill") X(FINAL_LR, "final-lr") X(FUSED_OUTPUT, "fused-output") \
    X(HEADS, "heads") X(HELP, "help") X(HELP_ALL, "help-all") X(INIT, "init") \
    X(INPUT, "input") X(JSON, "json") X(KEEP, "keep") \
    X(KV_HEADS, "kv-heads") X(LABEL_SMOOTHING, "label-smoothing") X(LAYERS, "layers") \
    X(LOG_EVERY, "log-every") X(LONGEST, "longest") X(LR, "lr") X(MAX_LENGTH, "max-length") \
    X(MINUTES, "minutes") X(MODEL, "model") X(NBEST, "nbest") X(NO_PAGE, "no-page") \
    X(NO_TEST, "no-test") X(NORM, "norm") X(NORM_EPS, "norm-eps") X(NORMALISE, "normalise") \
    X(OFFSETS, "offsets") X(OPTIMIZER, "optimizer") X(OUTPUT, "output") X(PAGE, "page") \
    X(PATIENCE, "patience") X(POOL, "pool") X(POSITIONS, "positions") X(PRECISION, "precision") \
    X(PRESET, "preset") X(PROFILE, "profile") X(PROMPT, "prompt") X(PROMPT_FILE, "prompt-file") \
    X(QUERY_GAIN, "query-gain") \
    X(RECOMPUTE, "recompute") X(REDUCE, "reduce") X(REPETITION_PENALTY, "repetition-penalty") \
    X(RESCALE, "rescale") X(RESERVE, "reserve") X(RESUME, "resume") X(ROTARY_BASE, "rotary-base") \
    X(ROTARY_PART, "rotary-part") X(SAMPLE_EVERY, "sample-every") \
    X(SAMPLE_TOKENS, "sample-tokens") X(SAMPLES, "samples") \
    X(SAVE_EVERY, "save-every") X(SAVE_MINUTES, "save-minutes") X(SCHEDULE, "schedule") \
    X(SCORES, "scores") X(SEED, "seed") X(SEQ_LEN, "seq-len") X(SHARD_TOKENS, "shard-tokens") \
    X(SHOW_ATTENTION, "show-attention") X(SIMILARITY, "similarity") X(SINK, "sink") \
    X(SOURCE, "source") X(STATS, "stats") X(STEPS, "steps") X(STOP, "stop") X(TARGET, "target") \
    X(TEMPERATURE, "temperature") X(TEST, "test") X(TEST_SOURCE, "test-source") \
    X(TEST_TARGET, "test-target") X(TIMEOUT, "timeout") X(TOKEN_SHIFT, "token-shift") \
    X(TOKENIZER, "tokenizer") X(TOP_K, "top-k") X(TOP_P, "top-p") \
    X(TOTAL_BATCH, "total-batch") X(TRAIN, "train") \
    X(TRANSLATE, "translate") X(UNTIED, "untied") X(VAL, "val") X(VAL_BATCHES, "val-batches") \
    X(VAL_EVERY, "val-every") X(VAL_SOURCE, "val-source") X(VAL_TARGET, "val-target") \
    X(VERIFY, "verify") X(VERSION, "version") X(VOCAB_SIZE, "vocab-size") X(WARMUP, "warmup") \
    X(WEIGHT_DECAY, "weight-decay") X(WINDOWS, "windows") \
    /* Of benches and tests only. */ \
    X(AT, "at") X(DRY, "dry") X(RARE, "rare") X(STREAMS, "streams") X(TEXTS, "texts") \
    X(TIED, "tied") X(TIMES, "times") X(TOKENS, "tokens") X(TYPE, "type") \
    X(VOCABULARY, "vocabulary")

#define OPTION_IDENTIFIER(identifier, text) OPT_##identifier,
typedef enum {
    OPT_NONE, // ends a list
    OPTION_NAMES(OPTION_IDENTIFIER) OPT_COUNT
} OptionName;
// clang-format on

#endif
