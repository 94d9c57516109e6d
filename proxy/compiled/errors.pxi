# A part of walk.pyx: error codes of the items of a response, by a program made from its schema
# (``proxy.core.response_errors``).

cdef enum:
    KEYS = 128
    VERSIONS = 32
    FAILURE = 0
    RETRIABLE = 1
    PROTOCOL = 2

cdef enum Op:
    OP_END
    OP_SKIP
    OP_TEXT
    OP_BYTES
    OP_NAME
    OP_TOPIC_ID
    OP_PARTITION
    OP_RESOURCE_TYPE
    OP_ERROR
    OP_ARRAY
    OP_NEXT
    OP_NUMBERS
    OP_TAGS
    OP_OPTIONAL

if response_errors.MAX_NAME != MAX_NAME or response_errors.MAX_DEPTH != MAX_DEPTH:
    raise AssertionError("the bounds of response_errors differ")

cdef Instruction *PROGRAMS[KEYS * VERSIONS]
cdef uint8_t STATES[KEYS * VERSIONS]  # 0: not made yet; 1: a program; 2: one of a flexible version; 3: none
memset(PROGRAMS, 0, sizeof(PROGRAMS))
memset(STATES, 0, sizeof(STATES))

cdef uint8_t CLASSES[256]
memset(CLASSES, FAILURE, sizeof(CLASSES))
for _code in response_errors.RETRIABLE:
    CLASSES[<int>_code] = RETRIABLE
for _code in response_errors.PROTOCOL:
    CLASSES[<int>_code] = PROTOCOL

cdef int64_t[3] MOST = [
    response_errors.MAX_KEPT_FAILURES, response_errors.MAX_KEPT_STEPS, response_errors.MAX_KEPT_STEPS,
]
cdef uint8_t NO_ID[16]
memset(NO_ID, 0, 16)
cdef tuple TYPES = response_errors.RESOURCE_TYPES
cdef int32_t TYPES_BY_NUMBER[2][128]  # of configs, of ACLs
memset(TYPES_BY_NUMBER, 0, sizeof(TYPES_BY_NUMBER))
for _code, _type in response_errors.CONFIG_TYPES.items():
    TYPES_BY_NUMBER[0][<int>_code] = TYPES.index(_type)
for _code, _type in response_errors.ACL_TYPES.items():
    TYPES_BY_NUMBER[1][<int>_code] = TYPES.index(_type)


cdef inline bint has_program(int key, int version) noexcept:
    """Whether responses of this api and version have error codes of items."""
    cdef uint8_t state
    if not 0 <= key < KEYS or not 0 <= version < VERSIONS:
        return False
    state = STATES[key * VERSIONS + version]
    if not state:
        state = make_program(key, version)
    return state < 3


cdef uint8_t make_program(int key, int version) noexcept:
    """Make the program, with the first response that could need it."""
    cdef Py_ssize_t at
    cdef Instruction *made = NULL
    try:
        rows = response_errors.program(key, version)
        if rows is not None:
            made = <Instruction *>PyMem_Malloc(len(rows) * sizeof(Instruction))
            if made == NULL:
                raise MemoryError
            for at in range(len(rows)):
                made[at].op, made[at].argument, made[at].target = rows[at]
    except Exception:  # it costs the errors of this api
        PyMem_Free(made)
        made = NULL
        rows = ()
    PROGRAMS[key * VERSIONS + version] = made
    STATES[key * VERSIONS + version] = 3 if made == NULL else 1 + made[len(rows) - 1].argument
    return STATES[key * VERSIONS + version]


cdef ErrorWalk *begin_errors(int key, int version) except NULL:
    if not has_program(key, version):
        raise ValueError(f"responses of api key {key}, version {version}, have no errors of items")
    cdef ErrorWalk *errors = <ErrorWalk *>PyMem_Malloc(sizeof(ErrorWalk))
    if errors == NULL:
        raise MemoryError
    errors.program = PROGRAMS[key * VERSIONS + version]
    errors.at = errors.depth = 0
    errors.in_tags = False
    errors.error_code = 0
    memset(errors.counts, 0, sizeof(errors.counts))
    memset(errors.kept, 0, sizeof(errors.kept))
    errors.found = NULL
    errors.levels[0].kind = errors.levels[0].start = 0
    begin_element(&errors.levels[0])
    return errors


cdef inline void begin_element(Level *level) noexcept:
    level.error_code = 0
    level.name_size = -1
    level.has_id = level.has_partition = False


cdef void free_errors(ErrorWalk *errors) noexcept:
    if errors != NULL:
        Py_XDECREF(errors.found)
        PyMem_Free(errors)


cdef int advance_errors(Walk *walk) except -1:
    """As ``advance``. An element is one instruction."""
    cdef ErrorWalk *errors = walk.errors
    cdef const Instruction *now
    cdef Level *level
    cdef int64_t mark, size
    cdef const uint8_t *start
    cdef uint64_t number, bytes_of_tag
    if walk.step == END:
        return 1
    while True:
        now = &errors.program[errors.at]
        level = &errors.levels[errors.depth]
        mark = walk.pos
        if now.op == OP_SKIP:
            walk.pos += now.argument
        elif now.op == OP_TEXT or now.op == OP_BYTES:
            if not text_size(walk, &size) if now.op == OP_TEXT else not length(walk, &size):
                walk.pos = mark
                return 0
            if size > 0:
                walk.pos += size
        elif now.op == OP_ERROR:
            if walk.pos + 2 > walk.size:
                return 0
            if not level.error_code:
                level.error_code = int16_at(walk.data + walk.pos)
            walk.pos += 2
        elif now.op == OP_PARTITION:
            if walk.pos + 4 > walk.size:
                return 0
            level.partition = int32_at(walk.data + walk.pos)
            level.has_partition = True
            walk.pos += 4
        elif now.op == OP_NAME:
            if not text(walk, &start, &size):
                walk.pos = mark
                return 0
            level.name_size = -1 if size < 0 else <int32_t>min(size, <int64_t>MAX_NAME)
            if size > 0:
                memcpy(level.name, start, level.name_size)
        elif now.op == OP_TOPIC_ID:
            if walk.pos + 16 > walk.size:
                return 0
            memcpy(level.topic_id, walk.data + walk.pos, 16)
            level.has_id = True
            walk.pos += 16
        elif now.op == OP_RESOURCE_TYPE:
            if walk.pos >= walk.size:
                return 0
            level.kind = TYPES_BY_NUMBER[now.argument][walk.data[walk.pos] & 127]
            walk.pos += 1
        elif now.op == OP_NUMBERS:
            if not length(walk, &size):
                walk.pos = mark
                return 0
            if size > 0:
                walk.pos += size * now.argument
        elif now.op == OP_ARRAY:
            if not length(walk, &size):
                walk.pos = mark
                return 0
            if size <= 0:
                errors.at = now.target
                continue
            errors.depth += 1
            level = &errors.levels[errors.depth]
            level.left = size
            level.index = 0
            level.start = errors.at + 1
            level.kind = now.argument
            begin_element(level)
        elif now.op == OP_NEXT:
            if level.error_code:
                tell_error(errors)
            level.left -= 1
            if level.left:
                level.index += 1
                begin_element(level)
                errors.at = level.start
                continue
            errors.depth -= 1
        elif now.op == OP_TAGS:
            if errors.in_tags:
                if not errors.tags:
                    errors.in_tags = False
                    errors.at += 1
                    continue
                if not uvarint(walk, &number) or not uvarint(walk, &bytes_of_tag):
                    walk.pos = mark
                    return 0
                if <int64_t>number == now.argument:
                    if bytes_of_tag != 2:
                        return malformed(walk.body.kind, f"an error code of {bytes_of_tag} bytes")
                    if walk.pos + 2 > walk.size:
                        walk.pos = mark
                        return 0
                    if not level.error_code:
                        level.error_code = int16_at(walk.data + walk.pos)
                walk.pos += <int64_t>bytes_of_tag
                errors.tags -= 1
                continue
            if walk.pos < walk.size and walk.data[walk.pos] == 0:
                walk.pos += 1
            else:
                if not uvarint(walk, &errors.tags):
                    walk.pos = mark
                    return 0
                errors.in_tags = True
                continue
        elif now.op == OP_OPTIONAL:
            if walk.pos >= walk.size:
                return 0
            walk.pos += 1
            if walk.data[walk.pos - 1] > 127:
                errors.at = now.target
                continue
        else:
            errors.error_code = level.error_code
            walk.step = END
            return 1
        errors.at += 1


cdef inline int text_size(Walk *walk, int64_t *size) except -1:
    """The length of a string, −1 for null; the string itself stays unread."""
    if walk.flexible:
        if not length(walk, size):
            return 0
        return 1 if size[0] <= MAX_STRING else malformed(walk.body.kind, f"a string of {size[0]} bytes")
    if walk.pos + 2 > walk.size:
        return 0
    size[0] = int16_at(walk.data + walk.pos)
    walk.pos += 2
    return 1 if size[0] >= -1 else malformed(walk.body.kind, f"a length of {size[0]}")


cdef int tell_error(ErrorWalk *errors) except -1:
    """Count the error of the current element, and keep it where there is room."""
    cdef Level *own = &errors.levels[errors.depth]
    cdef Level *named = own
    cdef Level *parent
    cdef int depth = errors.depth
    cdef int kind = CLASSES[own.error_code] if 0 <= own.error_code < 256 else FAILURE
    cdef list found
    errors.counts[kind] += 1
    if errors.kept[kind] >= MOST[kind]:
        return 0
    errors.kept[kind] += 1
    while depth > 1 and named.name_size < 0 and not named.has_id:  # a partition: the topic is around it
        depth -= 1
        named = &errors.levels[depth]
    if named.name_size < 0 and not named.has_id:
        named = own
        depth = errors.depth
    parent = NULL
    while depth > 1:
        depth -= 1
        if errors.levels[depth].name_size >= 0:
            parent = &errors.levels[depth]
            break
    if errors.found == NULL:
        found = []
        Py_INCREF(found)
        errors.found = <PyObject *>found
    (<list>errors.found).append(
        ItemErrorFacts(
            own.error_code,
            TYPES[named.kind],
            name_of(named),
            id_of(named),
            own.partition if own.has_partition else -1,
            own.index,
            TYPES[parent.kind] if parent != NULL else None,
            name_of(parent) if parent != NULL else None,
        )
    )
    return 0


cdef object id_of(const Level *level):
    """None too for the id of zeros that stands where there is a name alone."""
    if not level.has_id or level.name_size >= 0 and not memcmp(level.topic_id, NO_ID, 16):
        return None
    return (<const char *>level.topic_id)[:16]


cdef object name_of(const Level *level):
    return None if level.name_size < 0 else (<const char *>level.name)[:level.name_size]


cdef int64_t hand_over(ErrorWalk *errors, Exchange exchange) except -1:
    """Give the exchange what was found. Returns the bytes that it is charged with."""
    if errors.error_code:
        exchange.error_code = errors.error_code
    if errors.found == NULL:
        return 0
    exchange.item_errors = ItemErrors(
        tuple(<list>errors.found), errors.counts[FAILURE], errors.counts[RETRIABLE], errors.counts[PROTOCOL]
    )
    return size_of_errors(errors)


cdef inline int64_t size_of_errors(const ErrorWalk *errors) noexcept:
    return (PARTITION_BYTES + 2 * MAX_NAME) * (errors.kept[FAILURE] + errors.kept[RETRIABLE] + errors.kept[PROTOCOL])
