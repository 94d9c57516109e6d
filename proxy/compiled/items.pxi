# A part of walk.pyx: what a request is about, and the error codes of the items of a response, by a program made from
# the schema of the message (``proxy.core.request_resources``, ``proxy.core.response_errors``).

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
    OP_RESOURCE
    OP_FIELD
    OP_GENERATION
    OP_OFFSET
    OP_COMMIT
    OP_VALIDATE_ONLY
    OP_NODE
    OP_ACL_TEXT
    OP_ENTITY_TYPE
    OP_ACL_NUMBER
    OP_ACL
    OP_OP_TYPE
    OP_MECHANISM

if names.MAX_NAME != MAX_NAME or instructions.MAX_DEPTH != MAX_DEPTH or len(instructions.FIELDS) != MAX_FIELDS:
    raise AssertionError("the bounds of instructions differ")
if len(instructions.ACL_TEXTS) != MAX_ACL_TEXTS or len(instructions.ACL_NUMBERS) != MAX_ACL_NUMBERS:
    raise AssertionError("the fields of ACLs differ")

cdef Instruction *PROGRAMS[2 * KEYS * VERSIONS]  # of requests, of responses
cdef uint8_t STATES[2 * KEYS * VERSIONS]  # 0: not made yet; 1: a program; 2: one of a flexible version; 3: none
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
cdef int64_t MAX_RESOURCES = request_resources.MAX_KEPT_RESOURCES
cdef int64_t MAX_CHANGED = request_resources.MAX_KEPT_CHANGED
cdef int64_t MAX_COMMITS = request_resources.MAX_KEPT_COMMITS
cdef frozenset CHANGING = request_resources.CHANGING
cdef tuple TYPES = instructions.RESOURCE_TYPES
cdef tuple OP_TYPES = instructions.OP_TYPES
cdef tuple MECHANISMS = instructions.MECHANISMS
cdef tuple PATTERN_TYPES = instructions.PATTERN_TYPES
cdef tuple ACL_OPERATIONS = instructions.ACL_OPERATIONS
cdef tuple PERMISSION_TYPES = instructions.PERMISSION_TYPES
cdef uint8_t LITERAL = instructions.LITERAL
cdef int32_t DELETED = OP_TYPES.index("DELETE")
cdef int32_t CLIENT_QUOTA = TYPES.index("client_quota")
cdef dict ENTITY_TYPES = {one.encode(): TYPES.index(one) for one in ("user", "client-id", "ip")}
cdef int32_t TYPES_BY_NUMBER[2][128]  # of configs, of ACLs
memset(TYPES_BY_NUMBER, 0, sizeof(TYPES_BY_NUMBER))
for _code, _type in instructions.CONFIG_TYPES.items():
    TYPES_BY_NUMBER[0][<int>_code] = TYPES.index(_type)
for _code, _type in instructions.ACL_TYPES.items():
    TYPES_BY_NUMBER[1][<int>_code] = TYPES.index(_type)

cdef int64_t SIZES[27]  # bytes of the fields of fixed size, by instruction
memset(SIZES, 0, sizeof(SIZES))
SIZES[<int>OP_ERROR], SIZES[<int>OP_PARTITION], SIZES[<int>OP_TOPIC_ID], SIZES[<int>OP_RESOURCE_TYPE] = 2, 4, 16, 1
SIZES[<int>OP_GENERATION], SIZES[<int>OP_OFFSET], SIZES[<int>OP_VALIDATE_ONLY], SIZES[<int>OP_NODE] = 4, 8, 1, 4
SIZES[<int>OP_ACL_NUMBER], SIZES[<int>OP_OP_TYPE], SIZES[<int>OP_MECHANISM] = 1, 1, 1


cdef inline int place_of(int key, int version, bint response) noexcept:
    return (KEYS if response else 0) * VERSIONS + key * VERSIONS + version


cdef inline bint has_program(int key, int version, bint response) noexcept:
    """Whether requests of this api and version name resources, or their responses have error codes of items."""
    cdef uint8_t state
    if not 0 <= key < KEYS or not 0 <= version < VERSIONS:
        return False
    state = STATES[place_of(key, version, response)]
    if not state:
        state = make_program(key, version, response)
    return state < 3


cdef uint8_t make_program(int key, int version, bint response) noexcept:
    """Make the program, with the first message that could need it."""
    cdef Py_ssize_t at
    cdef Instruction *made = NULL
    cdef int place = place_of(key, version, response)
    try:
        rows = (response_errors if response else request_resources).program(key, version)
        if rows is not None:
            made = <Instruction *>PyMem_Malloc(len(rows) * sizeof(Instruction))
            if made == NULL:
                raise MemoryError
            for at in range(len(rows)):
                made[at].op, made[at].argument, made[at].target = rows[at]
    except Exception:  # it costs the resources or the errors of this api
        PyMem_Free(made)
        made = NULL
        rows = ()
    PROGRAMS[place] = made
    STATES[place] = 3 if made == NULL else 1 + made[len(rows) - 1].argument
    return STATES[place]


cdef ItemWalk *begin_items(int key, int version, bint response) except NULL:
    if not has_program(key, version, response):
        raise ValueError(f"api key {key}, version {version}, has no program")
    cdef ItemWalk *items = <ItemWalk *>PyMem_Malloc(sizeof(ItemWalk))
    if items == NULL:
        raise MemoryError
    memset(items, 0, sizeof(ItemWalk) - sizeof(items.levels))
    items.program = PROGRAMS[place_of(key, version, response)]
    items.most = MAX_CHANGED if key in CHANGING else MAX_RESOURCES
    items.generation = -1
    items.acl_numbers[0] = LITERAL
    items.levels[0].kind = items.levels[0].start = 0
    items.levels[0].index = 0
    begin_element(&items.levels[0])
    return items


cdef inline void begin_element(Level *level) noexcept:
    level.error_code = 0
    level.name_size = level.op_type = level.mechanism = -1
    level.has_id = level.has_partition = False


cdef void free_items(ItemWalk *items) noexcept:
    cdef int at
    if items == NULL:
        return
    Py_XDECREF(items.found)
    Py_XDECREF(items.found_commits)
    Py_XDECREF(items.found_acls)
    for at in range(MAX_ACL_TEXTS):
        Py_XDECREF(items.acl_texts[at])
    for at in range(MAX_FIELDS):
        Py_XDECREF(items.fields[at])
    PyMem_Free(items)


cdef int advance_items(Walk *walk) except -1:
    """As ``advance``. An element is one instruction."""
    cdef ItemWalk *items = walk.items
    cdef const Instruction *now
    cdef Level *level
    cdef int64_t mark, size
    if walk.step == END:
        return 1
    while True:
        now = &items.program[items.at]
        level = &items.levels[items.depth]
        mark = walk.pos
        if now.op == OP_SKIP:
            walk.pos += now.argument
        elif now.op == OP_TEXT or now.op == OP_BYTES:
            if not text_size(walk, &size) if now.op == OP_TEXT else not length(walk, &size):
                walk.pos = mark
                return 0
            if size > 0:
                walk.pos += size
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
                items.at = now.target
                continue
            items.depth += 1
            level = &items.levels[items.depth]
            level.left = size
            level.index = 0
            level.start = items.at + 1
            level.kind = now.argument
            begin_element(level)
        elif now.op == OP_NEXT:
            if level.error_code:
                keep_error(items)
            level.left -= 1
            if level.left:
                level.index += 1
                begin_element(level)
                items.at = level.start
                if walk.pos > walk.size:  # a declared number of elements costs nothing before their bytes are there
                    return 0
                continue
            items.depth -= 1
        elif now.op == OP_TAGS:
            if not read_tags(walk, items, level, now.argument):
                return 0
        elif now.op == OP_OPTIONAL:
            if walk.pos >= walk.size:
                return 0
            walk.pos += 1
            if walk.data[walk.pos - 1] > 127:
                items.at = now.target
                continue
        elif now.op == OP_END:
            items.error_code = level.error_code
            walk.step = END
            return 1
        elif not read_field(walk, items, level, now):
            walk.pos = mark
            return 0
        items.at += 1


cdef int read_tags(Walk *walk, ItemWalk *items, Level *level, int32_t error_tag) except -1:
    """Pass over tagged fields, but for the one that is an error code."""
    cdef int64_t mark
    cdef uint64_t number, size
    if not items.in_tags:
        if walk.pos < walk.size and walk.data[walk.pos] == 0:
            walk.pos += 1
            return 1
        mark = walk.pos
        if not uvarint(walk, &items.tags):
            walk.pos = mark
            return 0
        items.in_tags = True
    while items.tags:
        mark = walk.pos
        if not uvarint(walk, &number) or not uvarint(walk, &size):
            walk.pos = mark
            return 0
        if <int64_t>number == error_tag:
            if size != 2:
                return malformed(walk.body.kind, f"an error code of {size} bytes")
            if walk.pos + 2 > walk.size:
                walk.pos = mark
                return 0
            if not level.error_code:
                level.error_code = int16_at(walk.data + walk.pos)
        walk.pos += <int64_t>size
        items.tags -= 1
    items.in_tags = False
    return 1


cdef int read_field(Walk *walk, ItemWalk *items, Level *level, const Instruction *now) except -1:
    """Do an instruction about one resource or item. Where it returns 0, ``walk.pos`` may have moved."""
    cdef const uint8_t *start = walk.data + walk.pos
    cdef int64_t size
    cdef bytes short
    if now.op == OP_RESOURCE:
        if now.argument:
            level.kind = now.argument
        return keep_resource(items, level, name_of(level), id_of(level))
    if now.op == OP_COMMIT:
        return keep_commit(items, level)
    if now.op == OP_ACL:
        return keep_acl(items, level, now.argument)
    if now.op == OP_NAME or now.op == OP_FIELD or now.op == OP_ACL_TEXT or now.op == OP_ENTITY_TYPE:
        if not text(walk, &start, &size):
            return 0
        if size > MAX_NAME and now.op != OP_ENTITY_TYPE:
            short = names.shorten((<const char *>start)[:size])
            start, size = <const uint8_t *>PyBytes_AS_STRING(short), PyBytes_GET_SIZE(short)
        if now.op == OP_ACL_TEXT:
            return set_acl_text(items, now.argument, start, size)
        if now.op == OP_ENTITY_TYPE:
            level.kind = ENTITY_TYPES.get((<const char *>start)[:size], CLIENT_QUOTA) if size > 0 else CLIENT_QUOTA
            return 1
        if now.op == OP_FIELD:
            set_field(items, now.argument, start, size)
            if items.program[items.at + 1].op != OP_RESOURCE:
                return 1
        level.name_size = -1 if size < 0 else <int32_t>size
        if size > 0:
            memcpy(level.name, start, size)
        return 1
    size = SIZES[now.op]
    walk.pos += size
    if walk.pos > walk.size:
        return 0
    if now.op == OP_ERROR:
        if not level.error_code:
            level.error_code = int16_at(start)
    elif now.op == OP_PARTITION:
        level.partition = int32_at(start)
        level.has_partition = True
    elif now.op == OP_TOPIC_ID:
        memcpy(level.topic_id, start, 16)
        level.has_id = True
    elif now.op == OP_RESOURCE_TYPE:
        level.kind = TYPES_BY_NUMBER[now.argument][start[0] & 127]
    elif now.op == OP_GENERATION:
        items.generation = int32_at(start)
    elif now.op == OP_OFFSET:
        level.offset = int64_at(start)
    elif now.op == OP_VALIDATE_ONLY:
        items.validate_only = start[0] != 0
    elif now.op == OP_ACL_NUMBER:
        items.acl_numbers[now.argument] = start[0]
    elif now.op == OP_OP_TYPE:
        level.op_type = start[0] != 0 if now.argument else start[0]
    elif now.op == OP_MECHANISM:
        level.mechanism, level.op_type = start[0], now.argument
    else:  # OP_NODE
        level.kind = now.argument
        return keep_resource(items, level, b"%d" % int32_at(start), None)
    return 1


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
