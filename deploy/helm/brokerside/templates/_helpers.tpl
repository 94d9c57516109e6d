{{/* The name of what this release makes. */}}
{{- define "brokerside.fullname" -}}
{{- if contains "brokerside" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-brokerside" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "brokerside.labels" -}}
app.kubernetes.io/name: brokerside
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* An image as one name. Takes a list: the image's values, the chart's version. */}}
{{- define "brokerside.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default (index . 1) }}{{ end }}
{{- end }}

{{/* The port of an address. */}}
{{- define "brokerside.port" -}}
{{ regexReplaceAll ".*:" . "" }}
{{- end }}

{{- define "brokerside.securityContext" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
