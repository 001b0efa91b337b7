{{- define "gradwire.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* 54 characters leave room for "-headless". */}}
{{- define "gradwire.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else if contains (include "gradwire.name" .) .Release.Name }}
{{- .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gradwire.name" .) | trunc 54 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gradwire.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gradwire.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gradwire.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "gradwire.selectorLabels" . }}
{{- end }}

{{- define "gradwire.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "gradwire.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "gradwire.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "gradwire.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gradwire.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop:
    - ALL
{{- end }}

{{- define "gradwire.resources" -}}
{{- $resources := deepCopy .Values.resources }}
{{- if .Values.gpu.enabled }}
{{- $gpu := dict "nvidia.com/gpu" "1" }}
{{- $resources = merge $resources (dict "requests" $gpu "limits" $gpu) }}
{{- end }}
{{- toYaml $resources }}
{{- end }}
