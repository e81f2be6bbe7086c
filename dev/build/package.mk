# make install, man, deb, wheel, static and dist (docs/usage.md, "Installing"). A package holds one
# program for any processor, which contains all programs (dev/package/fastformer.c) and is built
# separately in BUILD/package or BUILD/static. The same sources give the same bytes: timestamps are
# those of the last commit or, without git, of CHANGELOG.md, which `make dist` gives the time of the
# last commit.
.PHONY: install uninstall man deb wheel static dist one
PREFIX ?= /usr/local
BIN = $(DESTDIR)$(PREFIX)/bin
SHARE = $(DESTDIR)$(PREFIX)/share
EPOCH = $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || \
          date -r CHANGELOG.md +%s))
PACKAGES ?= $(BUILD)/dist
PACKAGE_BUILD ?= $(BUILD)/package
STATIC_BUILD ?= $(BUILD)/static
IN_PACKAGES = mkdir -p "$(PACKAGES)" && SOURCE_DATE_EPOCH=$(EPOCH) VERSION=$(VERSION)

# Programs that cannot run here (cross-compiled) are installed without their pages.
install: $(PROGRAMS:%=$(FLOAT)/bin/%)
	install -d "$(BIN)"
	install -m 755 $^ "$(BIN)"
	! $(FLOAT)/bin/tokenize --version >/dev/null 2>&1 || \
	    dev/package/pages.sh $(FLOAT)/bin "$(SHARE)" site-functions $(PROGRAMS)

uninstall:
	rm -f $(PROGRAMS:%="$(BIN)/%") $(foreach name,$(PROGRAMS),"$(SHARE)/man/man1/$(name).1.gz" \
	    "$(SHARE)/bash-completion/completions/$(name)" "$(SHARE)/zsh/site-functions/_$(name)" \
	    "$(SHARE)/fish/vendor_completions.d/$(name).fish")

man: $(PROGRAMS:%=$(FLOAT)/bin/%)
	dev/package/pages.sh $(FLOAT)/bin $(BUILD)/share site-functions $(PROGRAMS)

# ---- one program that contains all -----------------------------------------------------------
vpath %.c dev/package
OBJCOPY ?= objcopy
define as_one # $(1) directory
$(1)/mains/%.o: $(1)/%.o
	@mkdir -p $$(@D)
	$$(Q)$$(OBJCOPY) --redefine-sym main=main_$$* $$< $$@
$(1)/fastformer.o: ONLY_HERE = -DPROGRAM_LIST='${PROGRAMS:%=PROGRAM(%)}'
$(1)/bin/fastformer $(1)/whole/fastformer.o: $(PROGRAMS:%=$(1)/mains/%.o)
endef
$(foreach dir,$(FLOAT) $(LEVELS:%=$(FLOAT)/%),$(eval $(call as_one,$(dir))))
STRIP ?= strip
one: $(FLOAT)/bin/fastformer
	$(STRIP) -R .comment -o $(BUILD)/fastformer $<

needs = @command -v $(word 1,$(1)) >/dev/null || { \
            echo "make $@ needs $(word 1,$(1)): install $(word 2,$(1))"; exit 1; }
# Runs make again with other settings. C without cancellation needs no unwind tables.
FOR_ANY = $(Q)MAKEFLAGS= $(MAKE) --no-print-directory $(filter -j%,$(MAKEFLAGS)) \
          $(MAKEOVERRIDES) ARCH=portable MPI=0 CPLUSPLUS=0 CUDA= \
          CFLAGS='$(or $(CFLAGS),-g0 -fno-asynchronous-unwind-tables)'
$(PACKAGE_BUILD)/fastformer: always
	+$(FOR_ANY) BUILD=$(PACKAGE_BUILD) one
deb wheel: $(PACKAGE_BUILD)/fastformer
	$(call needs,$(if $(filter deb,$@),dpkg-deb dpkg-dev,python3 python3))
	$(IN_PACKAGES) dev/package/$@.* $< "$(PACKAGES)"

# musl and GCC's OpenMP, both linked statically. musl's threads have the stack size that the program
# requests. Without oneDNN there are no bf16 products, so the bf16 level would equal the next one.
static:
	$(call needs,musl-gcc musl-tools)
	+$(FOR_ANY) CC=musl-gcc ONEDNN=0 OPENMP=1 \
	    LEVELS='$(if $(filter x86_64%,$(MACHINE)),avx512 avx2)' \
	    LDFLAGS='-static -Wl,-z,stack-size=8388608' BUILD=$(STATIC_BUILD) one
	mkdir -p "$(PACKAGES)" && cp $(STATIC_BUILD)/fastformer "$(PACKAGES)"
	ln -sf fastformer "$(PACKAGES)/train_fastformer"

dist:
	$(IN_PACKAGES) dev/package/dist.sh "$(PACKAGES)"
